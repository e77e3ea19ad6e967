// Package v1alpha1 has the custom resources of a cluster: BatchSandbox and Pool (lifecycle
// document, "Cluster resources").
//
// +kubebuilder:object:generate=true
// +groupName=sandbox.internal
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion names the resources' group and version.
var GroupVersion = schema.GroupVersion{Group: "sandbox.internal", Version: "v1alpha1"}

// AddToScheme makes the resources known to a scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &BatchSandbox{}, &BatchSandboxList{}, &Pool{}, &PoolList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}

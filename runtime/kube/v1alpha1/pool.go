package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// PoolFinalizer keeps a Pool that is being deleted until no batch has pods of it.
const PoolFinalizer = "sandbox.internal/pool"

// Pool keeps pods ready for BatchSandboxes that name it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=pools,shortName=pool,scope=Namespaced
// +kubebuilder:printcolumn:name="TOTAL",type=integer,JSONPath=`.status.total`
// +kubebuilder:printcolumn:name="ALLOCATED",type=integer,JSONPath=`.status.allocated`
// +kubebuilder:printcolumn:name="AVAILABLE",type=integer,JSONPath=`.status.available`
// +kubebuilder:printcolumn:name="UPDATED",type=integer,priority=1,JSONPath=`.status.updated`
// +kubebuilder:printcolumn:name="BUFFERMIN",type=integer,priority=1,JSONPath=`.spec.capacitySpec.bufferMin`
// +kubebuilder:printcolumn:name="BUFFERMAX",type=integer,priority=1,JSONPath=`.spec.capacitySpec.bufferMax`
// +kubebuilder:printcolumn:name="POOLMIN",type=integer,priority=1,JSONPath=`.spec.capacitySpec.poolMin`
// +kubebuilder:printcolumn:name="POOLMAX",type=integer,priority=1,JSONPath=`.spec.capacitySpec.poolMax`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="the name of a Pool has at most 63 characters, because it is a label of its pods"
type Pool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   PoolSpec   `json:"spec"`
	Status PoolStatus `json:"status,omitempty"`
}

// NotServed is the reason of the condition Ready of a Pool whose pods the API server refuses.
const NotServed = "NotServed"

// PoolList is a list of Pools.
//
// +kubebuilder:object:root=true
type PoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Pool `json:"items"`
}

// PoolSpec is the desired state.
type PoolSpec struct {
	// Template is the pod. For tasks it must set shareProcessNamespace and have a container
	// task-executor with the capability SYS_PTRACE added.
	//
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	Template *corev1.PodTemplateSpec `json:"template"`

	// UnknownField says, after decoding, which field of the template no pod has, so that the
	// template is refused; empty when there is none.
	UnknownField string `json:"-"`

	// CapacitySpec bounds the pool.
	CapacitySpec CapacitySpec `json:"capacitySpec"`

	// ScaleStrategy bounds how fast pods are created.
	//
	// +optional
	ScaleStrategy ScaleStrategy `json:"scaleStrategy,omitempty"`

	// UpdateStrategy is how available pods are replaced after a change of the template. Allocated
	// pods are never replaced.
	//
	// +optional
	UpdateStrategy UpdateStrategy `json:"updateStrategy,omitempty"`

	// RecycleStrategy is the treatment of a released pod: Delete deletes it, and the pool creates
	// another one; Restart restarts its containers, which removes their processes and files except
	// in volumes, and makes it available again.
	//
	// +optional
	// +kubebuilder:default=Delete
	RecycleStrategy RecycleStrategy `json:"recycleStrategy,omitempty"`
}

// CapacitySpec bounds the pool (lifecycle document, "Cluster resources").
//
// +kubebuilder:validation:XValidation:rule="self.bufferMin <= self.bufferMax",message="bufferMin must not be greater than bufferMax"
// +kubebuilder:validation:XValidation:rule="self.poolMin <= self.poolMax",message="poolMin must not be greater than poolMax"
// +kubebuilder:validation:XValidation:rule="self.bufferMax <= self.poolMax",message="bufferMax must not be greater than poolMax"
type CapacitySpec struct {
	// BufferMin: with fewer available pods, more are created, up to bufferMax.
	//
	// +kubebuilder:validation:Minimum=0
	BufferMin int32 `json:"bufferMin"`
	// BufferMax: with more available pods, the surplus is deleted.
	//
	// +kubebuilder:validation:Minimum=0
	BufferMax int32 `json:"bufferMax"`
	// PoolMin is the least number of pods, including allocated ones.
	//
	// +kubebuilder:validation:Minimum=0
	PoolMin int32 `json:"poolMin"`
	// PoolMax is the greatest number of pods, including allocated ones.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	PoolMax int32 `json:"poolMax"`
}

// ScaleStrategy bounds how fast pods are created.
type ScaleStrategy struct {
	// MaxUnavailable is how many pods of the pool may be starting at once, as a number or a
	// percentage of poolMax.
	//
	// +optional
	// +kubebuilder:default="100%"
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
}

// UpdateStrategy is how available pods are replaced after a change of the template.
type UpdateStrategy struct {
	// MaxUnavailable is how many pods may be unavailable at once during an update, as a number or a
	// percentage of the available ones.
	//
	// +optional
	// +kubebuilder:default="25%"
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
}

// RecycleStrategy is the treatment of a released pod.
//
// +kubebuilder:validation:Enum=Delete;Restart
type RecycleStrategy string

// The recycle strategies.
const (
	RecycleDelete  RecycleStrategy = "Delete"
	RecycleRestart RecycleStrategy = "Restart"
)

// PoolStatus is the observed state.
type PoolStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Total is the number of pods.
	//
	// +optional
	// +kubebuilder:default=0
	Total int32 `json:"total"`
	// Allocated is the number of pods that belong to BatchSandboxes.
	//
	// +optional
	// +kubebuilder:default=0
	Allocated int32 `json:"allocated"`
	// Available is the number of pods that are ready and not allocated.
	//
	// +optional
	// +kubebuilder:default=0
	Available int32 `json:"available"`
	// Updated is the number of pods created from the present template.
	//
	// +optional
	// +kubebuilder:default=0
	Updated int32 `json:"updated"`
	// Revision is the hash of the present template.
	//
	// +optional
	Revision string `json:"revision,omitempty"`
	// Conditions of the pool.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

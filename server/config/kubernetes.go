package config

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
)

// Kubernetes is the section [kubernetes]. It is used by the kubernetes runtime alone.
type Kubernetes struct {
	// KubeconfigPath is the path of the cluster's config file. Unset: the service runs in the
	// cluster, as its pod's service account.
	KubeconfigPath string `toml:"kubeconfig_path"`
	// Namespace is where sandboxes are: 1 to 63 lower-case letters, digits and inner hyphens.
	// Unset: that of the config file's context, or of the service's own pod.
	Namespace string `toml:"namespace"`
	// ProvisionTimeout is how long a sandbox may be Pending, 1 to 315360000; then it is Failed.
	ProvisionTimeout Seconds `toml:"provision_timeout"`
	// RuntimeClass is the name of a RuntimeClass. This key and those below are for sandboxes with
	// an image of their own; pods of a Pool have them in the Pool's template.
	RuntimeClass string `toml:"runtime_class"`
	// PriorityClass is the name of a PriorityClass.
	PriorityClass string `toml:"priority_class"`
	// NodeSelector are the labels that nodes must have, each as NAME=VALUE.
	NodeSelector []string `toml:"node_selector"`
	// EphemeralStorage is how much a sandbox may write on its node before it is evicted: a number
	// of bytes with an optional suffix such as Mi or Gi. It is requested, too. Unset: no limit.
	EphemeralStorage string `toml:"ephemeral_storage"`
	// ServiceAccount is the name of the pods' service account, whose token they do not get. Unset:
	// the namespace's default.
	ServiceAccount string `toml:"service_account"`
	// PodLabels are labels of the pods, each as NAME=VALUE.
	PodLabels []string `toml:"pod_labels"`
	// PodAnnotations are annotations of the pods, each as NAME=VALUE.
	PodAnnotations []string `toml:"pod_annotations"`
	// HostUsers runs pods without a user namespace. false needs Kubernetes 1.33, nodes that support
	// user namespaces for pods, and no host volumes of file systems without idmapped mounts.
	HostUsers bool `toml:"host_users"`
	// RunAsUser is the user that the programs of sandboxes run as, 1 to 2147483647, without
	// capabilities and without a way to more rights; the pods then pass the level restricted of the
	// Pod Security Standards. 0: the user of the image.
	RunAsUser int64 `toml:"run_as_user"`
	// Affinity is the affinity of the pods as JSON, as in a pod.
	Affinity string `toml:"affinity"`
	// CPURequestPercent is how much of the processor that a sandbox may use at most its pod
	// requests, 1 to 100.
	CPURequestPercent int `toml:"cpu_request_percent"`
	// MemoryRequestPercent is how much of the memory that a sandbox may use at most its pod
	// requests, 1 to 100. Below 100 a node whose memory is used up ends sandboxes.
	MemoryRequestPercent int `toml:"memory_request_percent"`
	// Tolerations permit sandboxes on nodes with taints.
	Tolerations []Toleration `toml:"tolerations"`
}

// Toleration is one entry of [[kubernetes.tolerations]], with the meanings of a pod's.
type Toleration struct {
	// Key is the key of a taint. Unset: every taint, with the operator Exists.
	Key string `toml:"key"`
	// Operator is Equal or Exists. Unset: Equal.
	Operator string `toml:"operator"`
	// Value is the value of the taint, with Equal.
	Value string `toml:"value"`
	// Effect is NoSchedule, PreferNoSchedule or NoExecute. Unset: all of them.
	Effect string `toml:"effect"`
	// TolerationSeconds is how long NoExecute is tolerated. Unset: for ever.
	TolerationSeconds *int64 `toml:"toleration_seconds"`
}

func defaultKubernetes() Kubernetes {
	return Kubernetes{
		ProvisionTimeout: 600, NodeSelector: []string{}, Tolerations: []Toleration{},
		PodLabels: []string{}, PodAnnotations: []string{}, HostUsers: true,
		CPURequestPercent: 100, MemoryRequestPercent: 100,
	}
}

var (
	// objectName is the name of an object of a cluster (RFC 1123, subdomain).
	objectName = regexp.MustCompile(
		`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)
	// labelName and labelValue are the parts of a label of a cluster's object; a name may have a
	// prefix.
	labelName = regexp.MustCompile(
		`^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`)
	labelValue = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?$`)
	// storageQuantity is an amount of bytes as Kubernetes writes it.
	storageQuantity = regexp.MustCompile(`^[1-9][0-9]*([kMGTPE]|[KMGTPE]i)?$`)
)

func (k Kubernetes) check(p *problems, runtime RuntimeType) {
	const kubeconfig = "kubernetes.kubeconfig_path"
	switch {
	case k.KubeconfigPath == "":
	case !filepath.IsAbs(k.KubeconfigPath):
		p.add(kubeconfig, "must be an absolute path (got %q)", k.KubeconfigPath)
	case runtime == RuntimeKubernetes:
		if _, err := os.ReadFile(k.KubeconfigPath); err != nil {
			p.add(kubeconfig, "must be a file that the server can read: %w", err)
		}
	}
	if k.Namespace != "" && !dnsLabel.MatchString(k.Namespace) {
		p.add("kubernetes.namespace",
			"must be 1 to 63 lower-case letters, digits and inner hyphens (got %q)", k.Namespace)
	}
	k.ProvisionTimeout.check(p, "kubernetes.provision_timeout", 1)
	for key, name := range map[string]string{"kubernetes.runtime_class": k.RuntimeClass,
		"kubernetes.priority_class": k.PriorityClass, "kubernetes.service_account": k.ServiceAccount} {
		if name != "" && (len(name) > 253 || !objectName.MatchString(name)) {
			p.add(key,
				"must be the name of an object: at most 253 lower-case letters, digits, '-' and '.' (got %q)", name)
		}
	}
	for i, label := range k.NodeSelector {
		name, value, ok := strings.Cut(label, "=")
		if !ok || !labelName.MatchString(name) || !labelValue.MatchString(value) {
			p.add(fmt.Sprintf("kubernetes.node_selector[%d]", i),
				"must be a label of nodes in the form NAME=VALUE (got %q)", label)
		}
	}
	if k.EphemeralStorage != "" && !storageQuantity.MatchString(k.EphemeralStorage) {
		p.add("kubernetes.ephemeral_storage",
			"must be a whole number of bytes with an optional suffix such as Mi or Gi (got %q)",
			k.EphemeralStorage)
	}
	k.checkPods(p)
	for i, t := range k.Tolerations {
		t.check(p, fmt.Sprintf("kubernetes.tolerations[%d]", i))
	}
}

// reservedLabel reports whether a name is one that the controller and the service know pods and
// resources by.
func reservedLabel(name string) bool {
	return strings.HasPrefix(name, "sandbox.internal/") || name == "app.kubernetes.io/managed-by"
}

// checkPods applies the rules of the API server for what every pod gets.
func (k Kubernetes) checkPods(p *problems) {
	for i, label := range k.PodLabels {
		name, value, ok := strings.Cut(label, "=")
		path := fmt.Sprintf("kubernetes.pod_labels[%d]", i)
		switch {
		case !ok || !labelName.MatchString(name) || !labelValue.MatchString(value):
			p.add(path, "must be a label in the form NAME=VALUE (got %q)", label)
		case reservedLabel(name):
			p.add(path, "must not be a label of our own (got %q)", name)
		}
	}
	for i, annotation := range k.PodAnnotations {
		name, _, ok := strings.Cut(annotation, "=")
		path := fmt.Sprintf("kubernetes.pod_annotations[%d]", i)
		switch {
		case !ok || !labelName.MatchString(name):
			p.add(path, "must be an annotation in the form NAME=VALUE (got %q)", annotation)
		case reservedLabel(name):
			p.add(path, "must not be an annotation of our own (got %q)", name)
		}
	}
	for key, percent := range map[string]int{"kubernetes.cpu_request_percent": k.CPURequestPercent,
		"kubernetes.memory_request_percent": k.MemoryRequestPercent} {
		if percent < 1 || percent > 100 {
			p.add(key, "must be 1 to 100 (got %d)", percent)
		}
	}
	if k.RunAsUser < 0 || k.RunAsUser > math.MaxInt32 {
		p.add("kubernetes.run_as_user", "must be 0, for the user of the image, or 1 to 2147483647 (got %d)",
			k.RunAsUser)
	}
	var object map[string]any
	if k.Affinity != "" && json.Unmarshal([]byte(k.Affinity), &object) != nil {
		p.add("kubernetes.affinity", "must be a JSON object, as the affinity of a pod (got %.100q)",
			k.Affinity)
	}
}

// check applies the rules that the API server has for a pod's tolerations, so that not every create
// fails instead of the start.
func (t Toleration) check(p *problems, path string) {
	if t.Key != "" && !labelName.MatchString(t.Key) {
		p.add(path+".key", "must be the name of a taint (got %q)", t.Key)
	}
	if t.Operator != "" {
		checkOneOf(p, path+".operator", t.Operator, "Equal", "Exists")
	}
	if t.Effect != "" {
		checkOneOf(p, path+".effect", t.Effect, "NoSchedule", "PreferNoSchedule", "NoExecute")
	}
	switch {
	case t.Operator == "Exists" && t.Value != "":
		p.add(path+".value", "has no use with the operator Exists (got %q)", t.Value)
	case !labelValue.MatchString(t.Value):
		p.add(path+".value", "must be the value of a taint (got %q)", t.Value)
	case t.Key == "" && t.Operator != "Exists":
		p.add(path+".operator", "must be Exists without a key")
	}
	if t.TolerationSeconds != nil && t.Effect != "NoExecute" {
		p.add(path+".toleration_seconds", "needs the effect NoExecute")
	}
}

func (k Kubernetes) warnings(runtime RuntimeType) []string {
	if runtime == RuntimeKubernetes || reflect.DeepEqual(k, defaultKubernetes()) {
		return nil
	}
	return []string{"the section [kubernetes] has no effect: runtime.type is " + string(runtime)}
}

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// BatchSandbox is a number of sandboxes that live and expire together: pods from a template of its own, or pods of a Pool.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas
// +kubebuilder:resource:path=batchsandboxes,shortName=bsbx,scope=Namespaced
// +kubebuilder:printcolumn:name="DESIRED",type=integer,JSONPath=`.spec.replicas`
// +kubebuilder:printcolumn:name="TOTAL",type=integer,JSONPath=`.status.replicas`
// +kubebuilder:printcolumn:name="ALLOCATED",type=integer,JSONPath=`.status.allocated`
// +kubebuilder:printcolumn:name="READY",type=integer,JSONPath=`.status.ready`
// +kubebuilder:printcolumn:name="TASK_RUNNING",type=integer,priority=1,JSONPath=`.status.taskStats.running`
// +kubebuilder:printcolumn:name="TASK_SUCCEED",type=integer,priority=1,JSONPath=`.status.taskStats.succeed`
// +kubebuilder:printcolumn:name="TASK_FAILED",type=integer,priority=1,JSONPath=`.status.taskStats.failed`
// +kubebuilder:printcolumn:name="TASK_UNKNOWN",type=integer,priority=1,JSONPath=`.status.taskStats.unknown`
// +kubebuilder:printcolumn:name="PHASE",type=string,priority=1,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="EXPIRE",type=string,JSONPath=`.spec.expireTime`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 58 && !self.metadata.name.contains('.')",message="the name must be a DNS label of at most 58 characters, because pods are named after it"
type BatchSandbox struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   BatchSandboxSpec   `json:"spec"`
	Status BatchSandboxStatus `json:"status,omitempty"`
}

// BatchSandboxList is a list of BatchSandboxes.
//
// +kubebuilder:object:root=true
type BatchSandboxList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BatchSandbox `json:"items"`
}

// BatchSandboxSpec is what is wanted.
//
// +kubebuilder:validation:XValidation:rule="has(self.template) != has(self.poolRef)",message="exactly one of template and poolRef must be set"
// +kubebuilder:validation:XValidation:rule="has(self.poolRef) == has(oldSelf.poolRef) && (!has(self.poolRef) || self.poolRef == oldSelf.poolRef)",message="poolRef is immutable"
// +kubebuilder:validation:XValidation:rule="!has(self.shardPatches) || has(self.template)",message="shardPatches need a template: pods of a pool exist before the batch does"
// +kubebuilder:validation:XValidation:rule="!has(self.shardTaskPatches) || has(self.taskTemplate)",message="shardTaskPatches need a taskTemplate"
// +kubebuilder:validation:XValidation:rule="oldSelf.hasValue() || !has(self.shardPatches) || size(self.shardPatches) <= self.replicas",message="there are more shardPatches than replicas",optionalOldSelf=true
// +kubebuilder:validation:XValidation:rule="oldSelf.hasValue() || !has(self.shardTaskPatches) || size(self.shardTaskPatches) <= self.replicas",message="there are more shardTaskPatches than replicas",optionalOldSelf=true
// +kubebuilder:validation:XValidation:rule="!has(self.pause) || !self.pause || !has(oldSelf.pause) || !oldSelf.pause || self.replicas == oldSelf.replicas",message="replicas cannot change while the batch is paused"
// +kubebuilder:validation:XValidation:rule="oldSelf.replicas == 0 || has(self.taskTemplate) == has(oldSelf.taskTemplate) && (!has(self.taskTemplate) || self.taskTemplate == oldSelf.taskTemplate)",message="taskTemplate is immutable while there are replicas: their tasks run already, and no task runs twice"
// +kubebuilder:validation:XValidation:rule="oldSelf.replicas == 0 || has(self.shardTaskPatches) == has(oldSelf.shardTaskPatches) && (!has(self.shardTaskPatches) || self.shardTaskPatches == oldSelf.shardTaskPatches)",message="shardTaskPatches are immutable while there are replicas: their tasks run already, and no task runs twice"
// +kubebuilder:validation:XValidation:rule="oldSelf.replicas == 0 || !has(self.taskTemplate) || !has(self.template) || !has(oldSelf.template) || self.template == oldSelf.template",message="template is immutable while there are replicas with tasks"
type BatchSandboxSpec struct {
	// Replicas is how many sandboxes there are. They are numbered from 0; a smaller number removes the last ones.
	//
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	Replicas int32 `json:"replicas"`

	// Template is the pod of each sandbox. A change takes effect for pods that are made from then on; with a task template it can change only
	// while there are no replicas.
	//
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	Template *corev1.PodTemplateSpec `json:"template,omitempty"`

	// PoolRef names the Pool, in the same namespace, whose pods become the sandboxes.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	PoolRef string `json:"poolRef,omitempty"`

	// ExpireTime is when all sandboxes of the batch end. Without it they live until the batch is deleted.
	//
	// +optional
	ExpireTime *metav1.Time `json:"expireTime,omitempty"`

	// Pause asks for the sandboxes' processes to be frozen; they keep their memory. It needs execd in the pods.
	//
	// +optional
	Pause bool `json:"pause,omitempty"`

	// TaskTemplate is the process that runs in each sandbox, started by the pod's task-executor. It can change only while there are no replicas.
	//
	// +optional
	TaskTemplate *TaskTemplate `json:"taskTemplate,omitempty"`

	// ShardPatches changes the template for the sandbox of the same number, as a strategic merge patch.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=10000
	ShardPatches []runtime.RawExtension `json:"shardPatches,omitempty"`

	// ShardTaskPatches changes the task template for the sandbox of the same number, as a JSON merge patch.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=10000
	ShardTaskPatches []runtime.RawExtension `json:"shardTaskPatches,omitempty"`

	// TaskResourcePolicyWhenCompleted says what becomes of a sandbox whose task has ended: Retain keeps it until the batch ends,
	// Release gives its pod back at once.
	//
	// +optional
	// +kubebuilder:default=Retain
	TaskResourcePolicyWhenCompleted TaskResourcePolicy `json:"taskResourcePolicyWhenCompleted,omitempty"`

	// ProvisionTimeoutSeconds is how long a batch that is Pending may take until every sandbox is usable: then those that are not end with
	// what keeps them, or PROVISION_TIMEOUT. Without it the batch waits as long as it takes, for a node with room, for instance.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	ProvisionTimeoutSeconds *int32 `json:"provisionTimeoutSeconds,omitempty"`

	// TTLSecondsAfterFinished is how long the record of a batch that has ended (Terminated or Failed) stays readable, in seconds.
	// Without it the batch is deleted as soon as it has expired, and one that ended otherwise stays.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
}

// TaskResourcePolicy says what becomes of a sandbox whose task has ended.
//
// +kubebuilder:validation:Enum=Retain;Release
type TaskResourcePolicy string

// The task resource policies.
const (
	TaskRetain  TaskResourcePolicy = "Retain"
	TaskRelease TaskResourcePolicy = "Release"
)

// TaskTemplate is a process that a task-executor runs in the main container of a pod.
type TaskTemplate struct {
	// Command is the executable and its first arguments.
	//
	// +kubebuilder:validation:MinItems=1
	Command []string `json:"command"`
	// Args are further arguments.
	//
	// +optional
	Args []string `json:"args,omitempty"`
	// Env is added to the main container's environment.
	//
	// +optional
	Env []EnvVar `json:"env,omitempty"`
	// WorkingDir is the process's folder; empty means that of the main container.
	//
	// +optional
	WorkingDir string `json:"workingDir,omitempty"`
	// TimeoutSeconds ends the task as failed; 0 means never.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	TimeoutSeconds int64 `json:"timeoutSeconds,omitempty"`
	// Readiness must answer before the sandbox counts as ready. Without it the task's start is enough.
	//
	// +optional
	Readiness *TaskReadiness `json:"readiness,omitempty"`
}

// EnvVar is an environment variable.
//
// +kubebuilder:validation:XValidation:rule="!has(self.value) || !has(self.valueFrom)",message="value and valueFrom exclude each other"
type EnvVar struct {
	// Name of the variable.
	//
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
	// Value of the variable.
	//
	// +optional
	Value string `json:"value,omitempty"`
	// ValueFrom says where the value is instead.
	//
	// +optional
	ValueFrom *EnvVarSource `json:"valueFrom,omitempty"`
}

// EnvVarSource is where the value of a variable is.
type EnvVarSource struct {
	// SecretKeyRef is an entry of a Secret in the batch's namespace. It is read once, before the first task that names it is started.
	SecretKeyRef SecretKeySelector `json:"secretKeyRef"`
}

// SecretKeySelector names an entry of a Secret.
type SecretKeySelector struct {
	// Name of the Secret.
	//
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
	// Key of the entry.
	//
	// +kubebuilder:validation:MinLength=1
	Key string `json:"key"`
}

// TaskReadiness is an HTTP GET that must answer with 200.
type TaskReadiness struct {
	// Port on the pod.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
	// Path of the request.
	//
	// +kubebuilder:default=/
	// +kubebuilder:validation:Pattern=`^/`
	Path string `json:"path,omitempty"`
}

// Phase is where the batch stands. The names are those of the lifecycle document's states.
type Phase string

// The phases.
const (
	PhasePending    Phase = "Pending"    // not every sandbox is usable yet
	PhaseRunning    Phase = "Running"    // every sandbox was proven usable; the condition Ready says whether all are
	PhasePausing    Phase = "Pausing"    // being frozen
	PhasePaused     Phase = "Paused"     // every sandbox is frozen
	PhaseResuming   Phase = "Resuming"   // being thawed
	PhaseStopping   Phase = "Stopping"   // being removed
	PhaseTerminated Phase = "Terminated" // ended, nothing of it runs
	PhaseFailed     Phase = "Failed"     // ended by an error, nothing of it runs
)

// Finished reports whether no phase follows.
func (p Phase) Finished() bool { return p == PhaseTerminated || p == PhaseFailed }

// BatchSandboxStatus is what is.
type BatchSandboxStatus struct {
	// ObservedGeneration is the generation of the spec that the status tells of.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Replicas is how many pods there are.
	//
	// +optional
	// +kubebuilder:default=0
	Replicas int32 `json:"replicas"`
	// Allocated is how many sandboxes have a pod of their own: one that is scheduled, or one of the pool.
	//
	// +optional
	// +kubebuilder:default=0
	Allocated int32 `json:"allocated"`
	// Ready is how many sandboxes are proven usable.
	//
	// +optional
	// +kubebuilder:default=0
	Ready int32 `json:"ready"`
	// TaskStats counts the sandboxes by what their task does; absent without a task template.
	//
	// +optional
	TaskStats *TaskStats `json:"taskStats,omitempty"`
	// Outcomes has one letter for each sandbox, by its number, so that no controller forgets an end: "-" lives; "S" ended well and "F" by
	// an error, and its pod is given back; "s" and "f" have a task that ended so, and their pod is kept (Retain). Shorter means "-".
	//
	// +optional
	// +kubebuilder:validation:MaxLength=10000
	Outcomes string `json:"outcomes,omitempty"`
	// Phase is where the batch stands; Reason, in upper snake case, and Message say why.
	//
	// +optional
	Phase Phase `json:"phase,omitempty"`
	// +optional
	Reason string `json:"reason,omitempty"`
	// +optional
	Message string `json:"message,omitempty"`
	// History has the latest changes of phase, oldest first.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=32
	History []PhaseChange `json:"history,omitempty"`
	// Addresses are the pods' IP addresses by the sandboxes' numbers; empty strings stand for those that have none yet.
	//
	// +optional
	Addresses []string `json:"addresses,omitempty"`
	// FinishedAt is when the batch became Terminated or Failed.
	//
	// +optional
	FinishedAt *metav1.MicroTime `json:"finishedAt,omitempty"`
	// Conditions of the batch: Ready, and what hinders it.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// The types of conditions.
const (
	ConditionReady    = "Ready"    // every sandbox is proven usable
	ConditionInvalid  = "Invalid"  // template, patch or pool break a rule: the message names it
	ConditionDegraded = "Degraded" // at least one of the sandboxes has ended by an error: reason and message are those of the first that did
)

// PhaseChange is a change of phase.
type PhaseChange struct {
	Phase Phase `json:"phase"`
	// +optional
	Reason string `json:"reason,omitempty"`
	// +optional
	Message string           `json:"message,omitempty"`
	Time    metav1.MicroTime `json:"time"`
}

// TaskStats counts sandboxes by the state of their task.
type TaskStats struct {
	Pending int32 `json:"pending"`
	Running int32 `json:"running"`
	Succeed int32 `json:"succeed"`
	Failed  int32 `json:"failed"`
	// Unknown are those whose task-executor does not answer.
	Unknown int32 `json:"unknown"`
}

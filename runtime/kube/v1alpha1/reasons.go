package v1alpha1

// The reasons in the status of a BatchSandbox. Reasons that the lifecycle service also has, on one
// machine, mean the same there.
const (
	ReasonProvisioning = "PROVISIONING" // accepted; no pod is on a node yet
	// the pod is on a node, which pulls the image or makes the container
	ReasonImagePulling      = "IMAGE_PULLING"
	ReasonContainerStarting = "CONTAINER_STARTING" // it runs, and is not proven usable yet
	ReasonContainerRunning  = "CONTAINER_RUNNING"  // usable
	ReasonUserPause         = "USER_PAUSE"         // spec.pause is true
	ReasonUserResume        = "USER_RESUME"        // spec.pause is false again
	// asleep, or ended by spec.sleep, because nothing has kept it awake
	ReasonIdle       = "IDLE"
	ReasonTimeout    = "TIMEOUT"     // asleep since spec.expireTime
	ReasonWoken      = "WOKEN"       // execd has woken it, or could not let it sleep
	ReasonUserDelete = "USER_DELETE" // the BatchSandbox is being deleted
	ReasonExpired    = "EXPIRED"     // spec.expireTime has passed
	// the message has the exit code and the last lines of its log
	ReasonEntrypointExited = "ENTRYPOINT_EXITED"
	ReasonOOMKilled        = "OOM_KILLED"       // it used more memory than its limit
	ReasonImagePullError   = "IMAGE_PULL_ERROR" // the message has the registry's own words
	// no node, pool or quota has what was asked for
	ReasonResourceLimit = "RESOURCE_LIMIT_EXCEEDED"
	// the egress sidecar does not start, or the node has given the pod no network in time
	ReasonNetworkError     = "NETWORK_ERROR"
	ReasonProvisionTimeout = "PROVISION_TIMEOUT" // it was not usable in time
	// the node could not make or start the container
	ReasonContainerError = "CONTAINER_ERROR"
	// another program removed the pod, or its node is gone
	ReasonRemovedExternally = "REMOVED_EXTERNALLY"
	// template, patch or pool break a rule, which the message names
	ReasonInvalidTemplate = "INVALID_TEMPLATE"
	ReasonPoolNotFound    = "POOL_NOT_FOUND" // there is no Pool of the name in poolRef
	ReasonReplicasZero    = "NO_REPLICAS"    // none are wanted
)

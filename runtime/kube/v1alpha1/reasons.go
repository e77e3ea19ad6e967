package v1alpha1

// The reasons in the status of a BatchSandbox. Those that the lifecycle service also has, on one machine, mean the same there.
const (
	ReasonProvisioning      = "PROVISIONING"            // accepted; no pod is on a node yet
	ReasonImagePulling      = "IMAGE_PULLING"           // the pod is on a node, which pulls the image or makes the container
	ReasonContainerStarting = "CONTAINER_STARTING"      // it runs, and is not proven usable yet
	ReasonContainerRunning  = "CONTAINER_RUNNING"       // usable
	ReasonUserPause         = "USER_PAUSE"              // spec.pause is true
	ReasonUserResume        = "USER_RESUME"             // spec.pause is false again
	ReasonUserDelete        = "USER_DELETE"             // the BatchSandbox is being deleted
	ReasonExpired           = "EXPIRED"                 // spec.expireTime has passed
	ReasonEntrypointExited  = "ENTRYPOINT_EXITED"       // the message has the exit code and the last lines of its log
	ReasonOOMKilled         = "OOM_KILLED"              // it used more memory than its limit
	ReasonImagePullError    = "IMAGE_PULL_ERROR"        // the message has the registry's own words
	ReasonResourceLimit     = "RESOURCE_LIMIT_EXCEEDED" // no node, pool or quota has what was asked for
	ReasonProvisionTimeout  = "PROVISION_TIMEOUT"       // it was not usable in time
	ReasonContainerError    = "CONTAINER_ERROR"         // the node could not make or start the container
	ReasonRemovedExternally = "REMOVED_EXTERNALLY"      // somebody else removed the pod, or its node is gone
	ReasonInvalidTemplate   = "INVALID_TEMPLATE"        // template, patch or pool break a rule, which the message names
	ReasonPoolNotFound      = "POOL_NOT_FOUND"          // there is no Pool of the name in poolRef
	ReasonReplicasZero      = "NO_REPLICAS"             // none are wanted
)

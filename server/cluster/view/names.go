package view

import (
	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/lifecycle"
)

// Labels and annotations of BatchSandboxes that are sandboxes of the service.
const (
	LabelManagedBy = "app.kubernetes.io/managed-by"
	ManagedBy      = "sandbox-server"

	AnnotationRecord   = lifecycle.LabelPrefix + "record"         // Record, as JSON
	AnnotationMetadata = lifecycle.LabelPrefix + "metadata"       // the sandbox's metadata, as JSON
	AnnotationPolicy   = lifecycle.LabelPrefix + "network-policy" // the policy last set, as JSON
	AnnotationSleep    = lifecycle.LabelPrefix + "lifecycle"      // when the sandbox falls asleep or ends by itself, as JSON
	AnnotationExpires  = lifecycle.LabelPrefix + "expires-at"     // spec.expireTime, with the fraction of the second that it cannot hold
	AnnotationAsked    = lifecycle.LabelPrefix + "asked-at"       // when a client asked last for a pause, a resume or the end
	AnnotationTouched  = lifecycle.LabelPrefix + "touched-at"     // when a client asked last for anything
	AnnotationSecret   = lifecycle.LabelPrefix + "secret"         // the name of the sandbox's Secret
	AnnotationSize     = lifecycle.LabelPrefix + "spec-bytes"     // how many bytes the spec has as JSON, which is not kept
)

// LabelSecret is on the Secret of a sandbox; its value is the sandbox's id. The others are entries
// of that Secret.
const (
	LabelSecret       = lifecycle.LabelPrefix + "secret-of"
	EntryExecdToken   = "execd-token"
	EntrySidecarToken = "egress-token"
)

// ContainerSidecar is the name of the init container that is the egress sidecar.
const ContainerSidecar = v1alpha1.ContainerEgress

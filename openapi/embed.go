// Package openapi holds the contracts: lifecycle.yaml, the API outside the sandboxes,
// execd.yaml, the API inside each of them, and egress.yaml, the API of the sidecar
// between a sandbox and the network.
//
// The YAML is written by hand and embedded as it is. The generated code brings no
// copy of its own, because the generator renames operationIds in the copy, and
// everything keyed by operationId would silently miss.
package openapi

import _ "embed"

//go:embed lifecycle.yaml
var lifecycleYAML string

//go:embed execd.yaml
var execdYAML string

//go:embed egress.yaml
var egressYAML string

// Lifecycle returns the lifecycle contract as it was written. The caller owns the
// bytes.
func Lifecycle() []byte { return []byte(lifecycleYAML) }

// Execd returns the contract of the API inside a sandbox as it was written. The
// caller owns the bytes.
func Execd() []byte { return []byte(execdYAML) }

// Egress returns the contract of the egress sidecar as it was written. The caller
// owns the bytes.
func Egress() []byte { return []byte(egressYAML) }

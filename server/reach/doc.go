// Package reach is what the lifecycle service and the ingress share on the way to a port of a
// sandbox: what lets a request in without an API key, and the answers of the sandbox's own daemon,
// which are distinguished from those of the program behind it.
package reach

// Package kube holds the tests of the whole on a real Kubernetes: API server, kubelet and
// containerd, the sandbox-controller, and the lifecycle service with runtime.type = "kubernetes".
// They need root and the images of `make images`; the cluster is that of KUBECONFIG, or one of
// their own (test/cluster).
package kube

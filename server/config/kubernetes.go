package config

import (
	"os"
	"path/filepath"
)

// Kubernetes is the section [kubernetes]. It is used by the kubernetes runtime alone.
type Kubernetes struct {
	// KubeconfigPath is the cluster's config file; empty means that the service runs in the cluster, as a pod's service account.
	KubeconfigPath string `toml:"kubeconfig_path"`
	// Namespace is where sandboxes live; empty means that of the config file's context, or of the service's own pod.
	Namespace string `toml:"namespace"`
	// ProvisionTimeout is how long a sandbox may be Pending before it has failed.
	ProvisionTimeout Seconds `toml:"provision_timeout"`
}

func defaultKubernetes() Kubernetes { return Kubernetes{ProvisionTimeout: 600} }

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
		p.add("kubernetes.namespace", "must be 1 to 63 lower-case letters, digits and inner hyphens (got %q)", k.Namespace)
	}
	k.ProvisionTimeout.check(p, "kubernetes.provision_timeout", 1)
}

func (k Kubernetes) warnings(runtime RuntimeType) []string {
	if runtime == RuntimeKubernetes || k == defaultKubernetes() {
		return nil
	}
	return []string{"the section [kubernetes] has no effect: runtime.type is " + string(runtime)}
}

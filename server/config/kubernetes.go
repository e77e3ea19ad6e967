package config

// Kubernetes is the section [kubernetes]. It is used by the kubernetes runtime alone, which is not supported yet.
type Kubernetes struct {
	// KubeconfigPath is the cluster's config file.
	KubeconfigPath string `toml:"kubeconfig_path"`
	// Namespace is where sandboxes live.
	Namespace string `toml:"namespace"`
}

func (k Kubernetes) check(p *problems) {
	if k.Namespace != "" && !dnsLabel.MatchString(k.Namespace) {
		p.add("kubernetes.namespace", "must be 1 to 63 lower-case letters, digits and inner hyphens (got %q)", k.Namespace)
	}
}

func (k Kubernetes) warnings(runtime RuntimeType) []string {
	if runtime == RuntimeKubernetes || k == (Kubernetes{}) {
		return nil
	}
	return []string{"the section [kubernetes] has no effect: runtime.type is " + string(runtime)}
}

package config

// Kubernetes is the section [kubernetes]. Not supported yet.
type Kubernetes struct {
	// KubeconfigPath is the cluster's config file.
	KubeconfigPath string `toml:"kubeconfig_path"`
	// Namespace is where sandboxes live.
	Namespace string `toml:"namespace"`
}

func (k Kubernetes) check(p *problems) {
	if k.KubeconfigPath != "" {
		p.notYet("kubernetes.kubeconfig_path", k.KubeconfigPath)
	}
	if k.Namespace != "" {
		p.notYet("kubernetes.namespace", k.Namespace)
	}
}

package config

// RuntimeType names the backend that runs sandboxes.
type RuntimeType string

// The backends.
const (
	// RuntimeDocker runs every sandbox as a container of one Docker Engine.
	RuntimeDocker RuntimeType = "docker"
	// RuntimeKubernetes runs sandboxes as pods of a cluster.
	RuntimeKubernetes RuntimeType = "kubernetes"
)

// Runtime is the section [runtime]: what sandboxes run on.
type Runtime struct {
	// Type is what sandboxes run on: docker or kubernetes.
	Type RuntimeType `toml:"type"`
	// ExecdImage is the reference of the image with execd, which is put into every sandbox. The
	// Docker Engine pulls it at the start when it does not have it.
	ExecdImage string `toml:"execd_image"`
}

func (r Runtime) check(p *problems) {
	switch r.Type {
	case RuntimeDocker, RuntimeKubernetes:
	case "":
		p.add("runtime.type", "is required (docker or kubernetes)")
	default:
		p.add("runtime.type", "must be docker or kubernetes (got %q)", string(r.Type))
	}
	switch {
	case r.ExecdImage == "":
		p.add("runtime.execd_image", "is required")
	case hasSpace(r.ExecdImage):
		p.add("runtime.execd_image", "must be an image reference without spaces (got %q)",
			r.ExecdImage)
	}
}

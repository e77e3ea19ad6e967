package config

import "fmt"

// RuntimeType names the backend that runs sandboxes.
type RuntimeType string

// The backends.
const (
	// RuntimeLocal runs every sandbox as a container of the service's own engine, by an OCI
	// runtime.
	RuntimeLocal RuntimeType = "local"
	// RuntimeDocker runs every sandbox as a container of one Docker Engine.
	RuntimeDocker RuntimeType = "docker"
	// RuntimeKubernetes runs sandboxes as pods of a cluster.
	RuntimeKubernetes RuntimeType = "kubernetes"
)

// Runtime is the section [runtime]: what sandboxes run on.
type Runtime struct {
	// Type is what sandboxes run on: local (an OCI runtime on this machine), docker or kubernetes.
	Type RuntimeType `toml:"type"`
	// ExecdImage is the reference of the image with execd, which is put into every sandbox. The
	// engine pulls it at the start when it does not have it, if the reference has the host of a
	// registry or a digest; else the image must have been loaded or built there. On a cluster the
	// nodes pull it.
	ExecdImage string `toml:"execd_image"`
	// InternalRegistries are the registries with loopback, private or link-local addresses that
	// keys of every role may name in images, and that other internal registries may lead to: host
	// names with an optional port, as in the names of images. Those of local.insecure_registries
	// may be named, too. Keys with the role admin may name any. The nodes of a cluster have rules
	// of their own.
	InternalRegistries []string `toml:"internal_registries"`
	// Classes are what a create request may choose to run its sandbox with.
	Classes []RuntimeClass `toml:"classes"`
}

// RuntimeClass is one entry of [[runtime.classes]].
type RuntimeClass struct {
	// Name is what create requests call the class: 1 to 63 lower-case letters, digits and inner
	// hyphens, unique.
	Name string `toml:"name"`
	// Handler is what runs the sandboxes of the class: the name of a runtime of the Docker Engine,
	// such as runsc, an OCI runtime as in local.oci_runtime, or the name of a RuntimeClass of the
	// cluster. The service does not start when the handler is missing.
	Handler string `toml:"handler"`
	// EgressSidecar is whether sandboxes of the class have an egress sidecar, if egress.image is
	// set. The sidecar can enforce a policy where sandboxes use the kernel's network stack, as with
	// runc and crun; with a stack of their own, such as gVisor's, this must be false, and a
	// networkPolicy is 400.
	EgressSidecar bool `toml:"egress_sidecar"`
}

func defaultRuntime() Runtime {
	return Runtime{InternalRegistries: []string{}, Classes: []RuntimeClass{}}
}

func (r Runtime) check(p *problems) {
	switch r.Type {
	case RuntimeLocal, RuntimeDocker, RuntimeKubernetes:
	case "":
		p.add("runtime.type", "is required (local, docker or kubernetes)")
	default:
		p.add("runtime.type", "must be local, docker or kubernetes (got %q)", string(r.Type))
	}
	switch {
	case r.ExecdImage == "":
		p.add("runtime.execd_image", "is required")
	case hasSpace(r.ExecdImage):
		p.add("runtime.execd_image", "must be an image reference without spaces (got %q)",
			r.ExecdImage)
	}
	for i, host := range r.InternalRegistries {
		if !isHostPort(host) {
			p.add(fmt.Sprintf("runtime.internal_registries[%d]", i),
				"must be a host name or an IP address with an optional port (got %q)", host)
		}
	}
	r.checkClasses(p)
}

func (r Runtime) checkClasses(p *problems) {
	names := map[string]bool{}
	for i, class := range r.Classes {
		path := fmt.Sprintf("runtime.classes[%d]", i)
		switch {
		case class.Name == "":
			p.add(path+".name", "is required")
		case !dnsLabel.MatchString(class.Name):
			p.add(path+".name",
				"must be 1 to 63 lower-case letters, digits and inner hyphens (got %q)", class.Name)
		case names[class.Name]:
			p.add(path+".name", "must be unique (%q is used by an earlier class)", class.Name)
		}
		names[class.Name] = true
		switch {
		case class.Handler == "":
			p.add(path+".handler", "is required")
		case hasSpace(class.Handler):
			p.add(path+".handler", "must be a name without spaces (got %q)", class.Handler)
		case r.Type == RuntimeKubernetes &&
			(len(class.Handler) > 253 || !objectName.MatchString(class.Handler)):
			p.add(path+".handler",
				"must be the name of a RuntimeClass: at most 253 lower-case letters, digits, '-' and '.' (got %q)",
				class.Handler)
		}
	}
}

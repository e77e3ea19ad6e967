package e2b

import (
	"maps"
	"slices"

	"sandbox.internal/server/lifecycle"
)

// Template is what a sandbox is created from.
type Template struct {
	Name string
	// Image is the reference of the image.
	Image string
	// Entrypoint is the main program and its arguments; nil means one that waits.
	Entrypoint []string
	// CPU and Memory limit the sandbox, in the form of the lifecycle document; empty means the
	// defaults of the API key.
	CPU, Memory string
	// User is the name of the user of commands and files whose client names none; empty means
	// root. Directory is where relative paths of theirs start; empty means the user's home.
	User, Directory string
}

// Templates are what clients may create sandboxes from.
type Templates struct {
	// Named are the templates by name.
	Named map[string]Template
	// Images says that an id which is no name of a template is the reference of an image.
	Images bool
}

// idle is the main program of a sandbox whose template has none.
var idle = []string{"/opt/sandbox/execd-init", "idle"}

// find returns the template with an id.
func (t Templates) find(id string) (Template, bool) {
	found, ok := t.Named[id]
	if !ok && t.Images && id != "" && !builtIn[id] {
		found, ok = Template{Name: id, Image: id}, true
	}
	if found.Entrypoint == nil {
		found.Entrypoint = idle
	}
	return found, ok
}

// builtIn are the names of E2B's own templates, which clients ask for by default. They are no
// references of images.
var builtIn = map[string]bool{"base": true, "code-interpreter-v1": true, "desktop": true, "mcp-gateway": true}

// Default returns the templates of a service that configures none: E2B's default names with the
// image, if there is one.
func Default(image string) map[string]Template {
	named := map[string]Template{}
	if image != "" {
		for _, name := range []string{"base", "code-interpreter-v1"} {
			named[name] = Template{Name: name, Image: image}
		}
	}
	return named
}

// names returns the names of the templates, sorted.
func (t Templates) names() []string { return slices.Sorted(maps.Keys(t.Named)) }

// limits returns the resource limits of the template as the service takes them.
func (t Template) limits() map[string]string {
	limits := map[string]string{}
	if t.CPU != "" {
		limits["cpu"] = t.CPU
	}
	if t.Memory != "" {
		limits["memory"] = t.Memory
	}
	return limits
}

// megabytes returns an amount of memory as E2B counts it, 0 for none.
func megabytes(limits lifecycle.Limits) int64 { return limits.MemoryBytes >> 20 }

// processors returns the limit of processors, rounded up; 0 for none.
func processors(limits lifecycle.Limits) int64 {
	const billion = 1_000_000_000
	return (limits.NanoCPUs + billion - 1) / billion
}

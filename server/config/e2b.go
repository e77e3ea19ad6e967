package config

import (
	"fmt"
	"path"
	"strings"
)

// CompatibilityE2B lets clients of E2B use the service.
const CompatibilityE2B = "e2b"

// E2B is the section [e2b]: what clients of E2B find, see docs/e2b.md. It has no effect unless
// server.compatibility has "e2b".
type E2B struct {
	// Domain is the domain of the hosts PORT-ID.DOMAIN, which lead to the ports of sandboxes, with
	// a port where clients need one. A reverse proxy with a certificate for *.DOMAIN passes them
	// on. Unset: clients reach the daemon of sandboxes by E2B_SANDBOX_URL alone.
	Domain string `toml:"domain"`
	// AllowImages is whether a template's id that no template has is the reference of an image.
	AllowImages bool `toml:"allow_images"`
	// Templates are what clients create sandboxes from. Without any, base and code-interpreter-v1
	// have server.default_image.
	Templates []E2BTemplate `toml:"templates"`
}

// E2BTemplate is one entry of [[e2b.templates]].
type E2BTemplate struct {
	// Name is the template's id: unique, of at most 128 letters, digits, dots, hyphens, underscores
	// and slashes.
	Name string `toml:"name"`
	// Image is the reference of the image, of at most 1024 bytes.
	Image string `toml:"image"`
	// Entrypoint is the main program and its arguments. Unset: one that waits.
	Entrypoint []string `toml:"entrypoint"`
	// CPU is the limit of processors, such as 2 or 500m. Unset: the key's default.
	CPU string `toml:"cpu"`
	// Memory is the limit of memory, such as 512Mi. Unset: the key's default.
	Memory string `toml:"memory"`
	// User is the name of the user of commands and files whose client names none. Unset: root.
	User string `toml:"user"`
	// WorkingDirectory is where relative paths of that user start: an absolute path. Unset: the
	// user's home.
	WorkingDirectory string `toml:"working_directory"`
}

func defaultE2B() E2B { return E2B{AllowImages: true, Templates: []E2BTemplate{}} }

func (e E2B) check(p *problems) {
	if host, _, _ := strings.Cut(e.Domain, ":"); e.Domain != "" && (!isHost(host) || strings.Count(e.Domain, ":") > 1) {
		p.add("e2b.domain", "must be a host name with an optional port, such as sandbox.example.com (got %q)", e.Domain)
	}
	names := map[string]bool{}
	for i, t := range e.Templates {
		at := fmt.Sprintf("e2b.templates[%d]", i)
		switch {
		case t.Name == "" || len(t.Name) > 128 || strings.Trim(t.Name, templateCharacters) != "":
			p.add(at+".name", "must be of 1 to 128 letters, digits, dots, hyphens, underscores and slashes (got %q)", t.Name)
		case names[t.Name]:
			p.add(at+".name", "must be unique (%q is used by an earlier template)", t.Name)
		}
		names[t.Name] = true
		if t.Image == "" || len(t.Image) > maxImage {
			p.add(at+".image", "must be a reference of 1 to %d bytes (got %d)", maxImage, len(t.Image))
		}
		checkQuantity(p, at+".cpu", t.CPU, cpuQuantity, cpuExample)
		checkQuantity(p, at+".memory", t.Memory, memoryQuantity, memoryExample)
		if t.WorkingDirectory != "" && !path.IsAbs(t.WorkingDirectory) {
			p.add(at+".working_directory", "must be an absolute path (got %q)", t.WorkingDirectory)
		}
	}
}

const templateCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_/"

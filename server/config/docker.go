package config

import (
	"reflect"
	"slices"
	"strings"
)

// mostSpareNetworks bounds docker.spare_networks: each holds an address of the engine's bridge.
const mostSpareNetworks = 64

// Docker is the section [docker], of the Docker Engine alone. The address of the engine is not here
// but in DOCKER_HOST. The keys of [Sandbox] are read from this section too.
type Docker struct {
	// APITimeout is how long a call of the engine's API may take, pulls excepted, 1 to 315360000; a
	// longer one counts as an engine that does not answer.
	APITimeout Seconds `toml:"api_timeout"`
	// SpareNetworks is how many networks are made ahead in bridge mode, 0 to 64, so that sandboxes
	// start in about half the time: each an egress sidecar or, without egress.image, a container
	// that does nothing and stays beside its sandbox. A sandbox that finds none starts as with 0.
	SpareNetworks int `toml:"spare_networks"`
	// ConfineProcessors is whether a sandbox whose resourceLimits.cpu needs fewer processors than
	// the machine has runs on so many alone, those with the least limits of others, as with
	// local.confine_processors. false leaves the choice to the kernel, and nproc shows the
	// machine's.
	ConfineProcessors bool `toml:"confine_processors"`
}

func defaultDocker() Docker { return Docker{APITimeout: 180, ConfineProcessors: true} }

func (d Docker) check(p *problems) {
	d.APITimeout.check(p, "docker.api_timeout", 1)
	if d.SpareNetworks < 0 || d.SpareNetworks > mostSpareNetworks {
		p.add("docker.spare_networks", "must be 0 to %d (got %d)", mostSpareNetworks, d.SpareNetworks)
	}
}

func (d Docker) warnings(runtime RuntimeType, mode NetworkMode) []string {
	var w []string
	switch {
	case d.SpareNetworks == 0:
	case runtime == RuntimeKubernetes:
		w = append(w, "docker.spare_networks has no effect: runtime.type is kubernetes")
	case runtime == RuntimeLocal || mode == NetworkHost:
		w = append(w, "docker.spare_networks has no effect: it is for the docker runtime in bridge mode")
	}
	if runtime != RuntimeDocker && !d.ConfineProcessors {
		w = append(w, "docker.confine_processors has no effect: runtime.type is "+string(runtime))
	}
	if runtime != RuntimeDocker && d.APITimeout != defaultDocker().APITimeout {
		w = append(w, "docker.api_timeout has no effect: runtime.type is "+string(runtime))
	}
	return w
}

const (
	dockerSection  = "docker"
	sandboxSection = "sandbox"
)

// fromDocker moves the settings of [Sandbox] that a file has in the section [docker], as the
// document does, into the section [sandbox] of the tree, and returns their names in order. A
// setting that is in both is a problem.
func fromDocker(p *problems, tree map[string]any) []string {
	docker, _ := tree[dockerSection].(map[string]any)
	sandbox, ok := tree[sandboxSection].(map[string]any)
	if tree[sandboxSection] != nil && !ok {
		return nil // which is a problem of its own
	}
	var moved []string
	for name := range taggedFields(reflect.TypeFor[Sandbox]()) {
		value, here := docker[name]
		if !here {
			continue
		}
		delete(docker, name)
		if _, twice := sandbox[name]; twice {
			p.add(joinKey(dockerSection, name), "is set twice: %s is the same setting", joinKey(sandboxSection, name))
			continue
		}
		if sandbox == nil {
			sandbox = map[string]any{}
			tree[sandboxSection] = sandbox
		}
		sandbox[name] = value
		moved = append(moved, name)
	}
	slices.Sort(moved)
	return moved
}

// Key returns a key of the section [sandbox], such as sandbox.pids_limit, as the file has it: the
// document's name of it is docker.pids_limit. Any other key is returned as it is.
func (c Config) Key(key string) string {
	name, ours := strings.CutPrefix(key, sandboxSection+".")
	setting, _, _ := strings.Cut(name, "[") // of a list's element
	if ours && slices.Contains(c.FromDocker, setting) {
		return dockerSection + "." + name
	}
	return key
}

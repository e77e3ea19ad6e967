package config

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// NetworkMode is how a sandbox's container is connected.
type NetworkMode string

// The network modes of the document ("Networking rules").
const (
	// NetworkBridge gives each sandbox a network namespace of its own.
	NetworkBridge NetworkMode = "bridge"
	// NetworkHost shares the host's network; then there is one sandbox at a time.
	NetworkHost NetworkMode = "host"
)

// SeccompUnconfined as docker.seccomp_profile switches seccomp off.
const SeccompUnconfined = "unconfined"

// mostSpareNetworks bounds docker.spare_networks: each holds an address of the engine's bridge.
const mostSpareNetworks = 64

// Docker is the section [docker]: how a sandbox's container is confined and connected, by Docker and by the local engine.
// The address of the Docker Engine is not here but in DOCKER_HOST.
type Docker struct {
	// NetworkMode is bridge, a network for each sandbox, or host, the network of the engine's
	// machine, on which the service must run: then there is one sandbox at a time.
	NetworkMode NetworkMode `toml:"network_mode"`
	// DropCapabilities are the capabilities(7) taken from sandboxes, with or without "CAP_", in any
	// case; ALL takes all.
	DropCapabilities []string `toml:"drop_capabilities"`
	// NoNewPrivileges is whether setuid programs give no privileges.
	NoNewPrivileges bool `toml:"no_new_privileges"`
	// AppArmorProfile is the name of a profile that is loaded on the engine's machine; one that is
	// not, or an engine without AppArmor, is refused at the start. Unset: the engine's default profile,
	// where it has one; "unconfined": none.
	AppArmorProfile string `toml:"apparmor_profile"`
	// PidsLimit is the highest number of processes of a sandbox, 0 or more; 0 is no limit.
	//
	// (The document says null, which TOML does not have.)
	PidsLimit int64 `toml:"pids_limit"`
	// SeccompProfile is unconfined, or the path of a JSON profile on the service's machine, which
	// is read once at the start. Unset: Docker's default profile, but of sockets only those of unix,
	// TCP, UDP and what lists interfaces; on Kubernetes the container runtime's.
	SeccompProfile string `toml:"seccomp_profile"`
	// APITimeout is how long a call of the engine's API may take, pulls excepted, 1 to 315360000; a
	// longer one counts as an engine that does not answer.
	APITimeout Seconds `toml:"api_timeout"`
	// HostIP is the host in endpoints in bridge mode, for a service that itself runs in a
	// container: an IP address or a host name, without a port. Unset: the host that the client
	// asked for.
	HostIP string `toml:"host_ip"`
	// AllowUnenforcedLimits is whether the service starts although a limit on memory, CPU time or
	// processes was seen to have no effect.
	AllowUnenforcedLimits bool `toml:"allow_unenforced_limits"`
	// SpareNetworks is how many networks are made ahead in bridge mode, 0 to 64, so that sandboxes start in
	// about half the time: each an egress sidecar or, without egress.image, a container that does nothing
	// and stays beside its sandbox. A sandbox that finds none starts as with 0.
	SpareNetworks int `toml:"spare_networks"`
}

func defaultDocker() Docker {
	return Docker{
		NetworkMode: NetworkBridge,
		DropCapabilities: []string{
			"AUDIT_WRITE", "MKNOD", "NET_ADMIN", "NET_RAW", "SYS_ADMIN",
			"SYS_MODULE", "SYS_PTRACE", "SYS_TIME", "SYS_TTY_CONFIG",
		},
		NoNewPrivileges: true,
		PidsLimit:       512,
		APITimeout:      180,
	}
}

func (d *Docker) normalise() {
	for i, name := range d.DropCapabilities {
		if isCapability(name) {
			d.DropCapabilities[i] = capabilityName(name)
		}
	}
}

func (d Docker) check(p *problems, e Environment, runtime RuntimeType) {
	if d.NetworkMode == NetworkHost && runtime == RuntimeDocker && !e.engineIsHere() {
		p.add("docker.network_mode",
			"must be bridge when %s names another machine, whose loopback interface the service cannot reach (got %q)",
			envDockerHost, string(d.NetworkMode))
	} else {
		checkOneOf(p, "docker.network_mode", d.NetworkMode, NetworkBridge, NetworkHost)
	}
	for i, name := range d.DropCapabilities {
		if !isCapability(name) {
			p.add(fmt.Sprintf("docker.drop_capabilities[%d]", i),
				"must be the name of a Linux capability, or ALL (got %q)", name)
		}
	}
	if hasSpace(d.AppArmorProfile) {
		p.add("docker.apparmor_profile", "must be a profile's name without spaces (got %q)",
			d.AppArmorProfile)
	}
	if d.PidsLimit < 0 {
		p.add("docker.pids_limit", "must be 0 or more, where 0 is no limit (got %d)", d.PidsLimit)
	}
	if runtime == RuntimeKubernetes && d.SeccompProfile != "" &&
		d.SeccompProfile != SeccompUnconfined {
		p.add("docker.seccomp_profile",
			"must be empty or %s with the kubernetes runtime: a profile would have to be on every node (got %q)", SeccompUnconfined, d.SeccompProfile)
	} else {
		checkSeccomp(p, d.SeccompProfile)
	}
	d.APITimeout.check(p, "docker.api_timeout", 1)
	if d.SpareNetworks < 0 || d.SpareNetworks > mostSpareNetworks {
		p.add("docker.spare_networks", "must be 0 to %d (got %d)", mostSpareNetworks, d.SpareNetworks)
	}
	if d.HostIP != "" && !isHost(d.HostIP) {
		p.add("docker.host_ip", "must be an IP address or a host name, without a port (got %q)",
			d.HostIP)
	}
}

func (d Docker) warnings(runtime RuntimeType) []string {
	var w []string
	if runtime == RuntimeKubernetes {
		// What says how a container is confined holds for pods too; the rest is about an engine.
		if d.NetworkMode == NetworkHost {
			w = append(w, "docker.network_mode has no effect: runtime.type is kubernetes")
		}
		if d.HostIP != "" {
			w = append(w, "docker.host_ip has no effect: runtime.type is kubernetes")
		}
		if d.SpareNetworks > 0 {
			w = append(w, "docker.spare_networks has no effect: runtime.type is kubernetes")
		}
		if d.PidsLimit != defaultDocker().PidsLimit {
			w = append(w, "docker.pids_limit has no effect: runtime.type is kubernetes; set the kubelet's podPidsLimit")
		}
		if d.APITimeout != defaultDocker().APITimeout {
			w = append(w, "docker.api_timeout has no effect: runtime.type is kubernetes")
		}
		if d.AllowUnenforcedLimits {
			w = append(w, "docker.allow_unenforced_limits has no effect: runtime.type is kubernetes")
		}
		return w
	}
	if d.SpareNetworks > 0 && (runtime == RuntimeLocal || d.NetworkMode == NetworkHost) {
		w = append(w, "docker.spare_networks has no effect: it is for the docker runtime in bridge mode")
	}
	if runtime == RuntimeLocal && d.APITimeout != defaultDocker().APITimeout {
		w = append(w, "docker.api_timeout has no effect: runtime.type is local")
	}
	if d.NetworkMode == NetworkHost {
		w = append(w,
			"docker.network_mode is host: a sandbox reaches everything that listens on this host, on 127.0.0.1 too, and there is one sandbox at a time")
	}
	if d.AllowUnenforcedLimits {
		w = append(w,
			"docker.allow_unenforced_limits is true: the service starts even when limits of sandboxes have no effect")
	}
	return w
}

// checkSeccomp reads the profile now: at the first create it would be too late
// to learn that it is broken.
func checkSeccomp(p *problems, profile string) {
	const key = "docker.seccomp_profile"
	if profile == "" || profile == SeccompUnconfined {
		return
	}
	if !filepath.IsAbs(profile) {
		p.add(key, "must be empty, %s or the absolute path of a profile (got %q)",
			SeccompUnconfined, profile)
		return
	}
	content, err := os.ReadFile(profile)
	if err != nil {
		p.add(key, "must be a file that the server can read: %w", err)
		return
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(content, &object); err != nil {
		p.add(key, "must hold a JSON object: %s: %w", profile, err)
	}
}

package config

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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

// SeccompUnconfined as sandbox.seccomp_profile switches seccomp off.
const SeccompUnconfined = "unconfined"

// Sandbox is the section [sandbox]: how a sandbox is confined and connected, whatever runs it. The
// document has these keys in the section [docker], where they work as well.
type Sandbox struct {
	// NetworkMode is bridge, a network for each sandbox, or host, the network of the engine's
	// machine, on which the service must run: then there is one sandbox at a time.
	NetworkMode NetworkMode `toml:"network_mode"`
	// DropCapabilities are the capabilities(7) taken from sandboxes, with or without "CAP_", in any
	// case; ALL takes all.
	DropCapabilities []string `toml:"drop_capabilities"`
	// NoNewPrivileges is whether setuid programs give no privileges.
	NoNewPrivileges bool `toml:"no_new_privileges"`
	// AppArmorProfile is the name of a profile that is loaded on the engine's machine; one that is
	// not, or an engine without AppArmor, is refused at the start. Unset: the engine's default
	// profile, where it has one; "unconfined": none.
	AppArmorProfile string `toml:"apparmor_profile"`
	// PidsLimit is the highest number of processes of a sandbox, 0 or more; 0 is no limit.
	//
	// (The document says null, which TOML does not have.)
	PidsLimit int64 `toml:"pids_limit"`
	// SeccompProfile is unconfined, or the path of a JSON profile on the service's machine, which
	// is read once at the start. Unset: Docker's default profile, but of sockets only those of
	// unix, TCP, UDP and what lists interfaces; on Kubernetes the container runtime's.
	SeccompProfile string `toml:"seccomp_profile"`
	// HostIP is the host in endpoints in bridge mode, for a service that itself runs in a
	// container: an IP address or a host name, without a port. Unset: the host that the client
	// asked for.
	HostIP string `toml:"host_ip"`
	// AllowUnenforcedLimits is whether the service starts although a limit on memory, CPU time or
	// processes was seen to have no effect.
	AllowUnenforcedLimits bool `toml:"allow_unenforced_limits"`
}

func defaultSandbox() Sandbox {
	return Sandbox{
		NetworkMode: NetworkBridge,
		DropCapabilities: []string{
			"AUDIT_WRITE", "MKNOD", "NET_ADMIN", "NET_RAW", "SYS_ADMIN",
			"SYS_MODULE", "SYS_PTRACE", "SYS_TIME", "SYS_TTY_CONFIG",
		},
		NoNewPrivileges: true,
		PidsLimit:       512,
	}
}

func (s *Sandbox) normalise() {
	for i, name := range s.DropCapabilities {
		if isCapability(name) {
			s.DropCapabilities[i] = capabilityName(name)
		}
	}
}

func (s Sandbox) check(p *problems, e Environment, runtime RuntimeType) {
	if s.NetworkMode == NetworkHost && runtime == RuntimeDocker && !e.engineIsHere() {
		p.add("sandbox.network_mode",
			"must be bridge when %s names another machine, whose loopback interface the service cannot reach (got %q)",
			envDockerHost, string(s.NetworkMode))
	} else {
		checkOneOf(p, "sandbox.network_mode", s.NetworkMode, NetworkBridge, NetworkHost)
	}
	for i, name := range s.DropCapabilities {
		if !isCapability(name) {
			p.add(fmt.Sprintf("sandbox.drop_capabilities[%d]", i),
				"must be the name of a Linux capability, or ALL (got %q)", name)
		}
	}
	if hasSpace(s.AppArmorProfile) {
		p.add("sandbox.apparmor_profile", "must be a profile's name without spaces (got %q)",
			s.AppArmorProfile)
	}
	if s.PidsLimit < 0 {
		p.add("sandbox.pids_limit", "must be 0 or more, where 0 is no limit (got %d)", s.PidsLimit)
	}
	if runtime == RuntimeKubernetes && s.SeccompProfile != "" &&
		s.SeccompProfile != SeccompUnconfined {
		p.add("sandbox.seccomp_profile",
			"must be empty or %s with the kubernetes runtime: a profile would have to be on every node (got %q)", SeccompUnconfined, s.SeccompProfile)
	} else {
		checkSeccomp(p, s.SeccompProfile)
	}
	if s.HostIP != "" && !isHost(s.HostIP) {
		p.add("sandbox.host_ip", "must be an IP address or a host name, without a port (got %q)",
			s.HostIP)
	}
}

// warnings are those of the configuration; key returns a key as the operator wrote it.
func (s Sandbox) warnings(runtime RuntimeType, key func(string) string) []string {
	var w []string
	if runtime == RuntimeKubernetes {
		// What says how a container is confined holds for pods too; the rest is about one machine.
		for name, set := range map[string]bool{
			"sandbox.network_mode":            s.NetworkMode == NetworkHost,
			"sandbox.host_ip":                 s.HostIP != "",
			"sandbox.allow_unenforced_limits": s.AllowUnenforcedLimits,
		} {
			if set {
				w = append(w, key(name)+" has no effect: runtime.type is kubernetes")
			}
		}
		slices.Sort(w)
		if s.PidsLimit != defaultSandbox().PidsLimit {
			w = append(w, key("sandbox.pids_limit")+" has no effect: runtime.type is kubernetes; set the kubelet's podPidsLimit")
		}
		return w
	}
	if s.NetworkMode == NetworkHost {
		w = append(w, key("sandbox.network_mode")+
			" is host: a sandbox reaches everything that listens on this host, on 127.0.0.1 too, and there is one sandbox at a time")
	}
	if s.AllowUnenforcedLimits {
		w = append(w, key("sandbox.allow_unenforced_limits")+
			" is true: the service starts even when limits of sandboxes have no effect")
	}
	return w
}

// checkSeccomp reads the profile now: at the first create it would be too late
// to learn that it is broken.
func checkSeccomp(p *problems, profile string) {
	const key = "sandbox.seccomp_profile"
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

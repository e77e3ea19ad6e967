package bundle

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/runtime/engine"
)

const (
	capabilityPrefix = "CAP_"
	allCapabilities  = "ALL"
)

// kernelCapabilities are all of linux/capability.h, by number.
var kernelCapabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL",
	"CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP", "CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE",
	"CAP_NET_BROADCAST", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_IPC_LOCK", "CAP_IPC_OWNER",
	"CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_PACCT",
	"CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE", "CAP_SYS_TIME",
	"CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE", "CAP_AUDIT_WRITE", "CAP_AUDIT_CONTROL",
	"CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG", "CAP_WAKE_ALARM",
	"CAP_BLOCK_SUSPEND", "CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF", "CAP_CHECKPOINT_RESTORE",
}

// defaultCapabilities are Docker's.
var defaultCapabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW",
	"CAP_SETGID", "CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE",
	"CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
}

// supported are the capabilities that this kernel has.
var supported = sync.OnceValue(func() []string {
	content, err := os.ReadFile("/proc/sys/kernel/cap_last_cap")
	if err != nil {
		return kernelCapabilities
	}
	last, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil || last < 0 || last >= len(kernelCapabilities) {
		return kernelCapabilities
	}
	return kernelCapabilities[:last+1]
})

// capabilities returns what a container's processes may have, by Docker's rules: the default
// without those that are dropped, and then those that are added. ALL among the added ones means
// every one that is not dropped, among the dropped ones none but the added ones.
func capabilities(security engine.Security) ([]string, error) {
	drop, dropAll, err := capabilityNames("dropped capabilities", security.DropCapabilities)
	if err != nil {
		return nil, err
	}
	add, addAll, err := capabilityNames("added capabilities", security.AddCapabilities)
	if err != nil {
		return nil, err
	}
	granted := func(name string) bool {
		switch {
		case addAll:
			return !slices.Contains(drop, name)
		case slices.Contains(add, name):
			return true
		}
		return !dropAll && slices.Contains(defaultCapabilities, name) && !slices.Contains(drop, name)
	}
	var names []string
	for _, name := range supported() {
		if granted(name) {
			names = append(names, name)
		}
	}
	return names, nil
}

func capabilityNames(field string, given []string) (names []string, all bool, err error) {
	for _, name := range given {
		full := strings.ToUpper(name)
		if full == allCapabilities {
			all = true
			continue
		}
		if !strings.HasPrefix(full, capabilityPrefix) {
			full = capabilityPrefix + full
		}
		if !slices.Contains(kernelCapabilities, full) {
			return nil, false, invalid(field, "%q is not the name of a capability, nor ALL", name)
		}
		names = append(names, full)
	}
	return names, all, nil
}

// capabilitySets is what a process starts with. One that is not root's has none, as after
// execve(2), but may gain those of files.
func capabilitySets(names []string, user specs.User) *specs.LinuxCapabilities {
	sets := &specs.LinuxCapabilities{Bounding: names}
	if user.UID == 0 {
		sets.Effective, sets.Permitted = names, names
	}
	return sets
}

package config

import (
	"slices"
	"strings"
)

// capabilityName brings a capability to the document's spelling.
func capabilityName(s string) string {
	return strings.TrimPrefix(strings.ToUpper(s), "CAP_")
}

// isCapability reports whether s, in any spelling that capabilityName accepts,
// is in capabilities(7), or ALL, which the engine takes for all of them. A
// misspelt name must not pass: the sandbox would silently keep the capability.
func isCapability(s string) bool {
	name := capabilityName(s)
	return name == "ALL" || slices.Contains(strings.Fields(capabilityNames), name)
}

// capabilityNames is the list of Linux 5.9 and later, in the kernel's order.
const capabilityNames = `
CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP
LINUX_IMMUTABLE NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK
IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN
SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE
AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND
AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE`

// Package profile is the seccomp profile of sandboxes, on every engine that takes one: Docker's
// default profile with an allow-list of sockets in the place of its list of two families that it
// refuses. A process without capabilities loads the kernel module of a family or of a protocol by
// naming it, and modules that few use were where processes got from containers into the kernel.
package profile

import (
	"encoding/json"
	"slices"
	"sync"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Arguments of socket(2) by their index.
const (
	family = iota
	kind
	protocol
)

// typeBits are those of the argument kind that are the type of the socket; others are flags.
const typeBits = 0xf

// netAdmin is what rules of netfilter take, such as those of an egress sidecar.
const netAdmin = "CAP_NET_ADMIN"

// netlinkProtocols are what programs use that have no capability: lists of interfaces and
// addresses, and events of devices.
var netlinkProtocols = []uint64{unix.NETLINK_ROUTE, unix.NETLINK_KOBJECT_UEVENT}

// internetProtocols are those of sockets that are not raw; 0 is the first that the type has.
var internetProtocols = []uint64{unix.IPPROTO_IP, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_MPTCP}

// New returns a new copy of the profile. The families, and protocols of netlink, that it refuses
// have the errors of a kernel without them, which programs expect.
//
// It is a list of what is permitted because conditions of libseccomp compare 64 bits, of which the
// kernel ignores the upper half: with other upper bits a list of what is refused refuses nothing.
func New() *seccomp.Seccomp {
	made := seccomp.DefaultProfile()
	kept := made.Syscalls[:0]
	for _, call := range made.Syscalls {
		call.Names = slices.DeleteFunc(call.Names, func(name string) bool {
			return name == "socket" || name == "socketpair" || name == "socketcall"
		})
		if len(call.Names) > 0 {
			kept = append(kept, call)
		}
	}
	made.Syscalls = slices.Concat(multiplexed(), kept, families(), netlink(), internet(unix.AF_INET, unix.IPPROTO_ICMP), internet(unix.AF_INET6, unix.IPPROTO_ICMPV6))
	return made
}

// JSON returns the profile as Docker takes it.
var JSON = sync.OnceValues(func() (string, error) {
	text, err := json.Marshal(New())
	return string(text), err
})

// families permits unix(7), and refuses all that are not here nor below.
func families() []*seccomp.Syscall {
	calls := []*seccomp.Syscall{
		allow(equal(family, unix.AF_UNIX)),
		refuse(unix.EAFNOSUPPORT, specs.LinuxSeccompArg{Index: family, Value: unix.AF_NETLINK, Op: specs.OpGreaterThan}),
	}
	for other := range uint64(unix.AF_NETLINK) {
		if other != unix.AF_UNIX && other != unix.AF_INET && other != unix.AF_INET6 {
			calls = append(calls, refuse(unix.EAFNOSUPPORT, equal(family, other)))
		}
	}
	pair := allow(equal(family, unix.AF_UNIX))
	pair.Names = []string{"socketpair"}
	return append(calls, pair)
}

// multiplexed refuses socketcall(2) of 32-bit x86, whose arguments are in memory, where no filter
// sees them. It comes before all others: libseccomp makes rules for this call of those for
// socket(2), and refuses those that differ in what they do and not in what it sees.
func multiplexed() []*seccomp.Syscall {
	call := refuse(unix.ENOSYS)
	call.Names = []string{"socketcall"}
	return []*seccomp.Syscall{call}
}

// netlink permits the protocols of netlink(7) that programs need. What waits in netlink sockets is
// memory that no limit of a container counts, and others than these let a process send itself
// messages.
func netlink() []*seccomp.Syscall {
	var calls []*seccomp.Syscall
	for _, permitted := range netlinkProtocols {
		calls = append(calls, allow(equal(family, unix.AF_NETLINK), equal(protocol, permitted)))
	}
	filter := []specs.LinuxSeccompArg{equal(family, unix.AF_NETLINK), equal(protocol, unix.NETLINK_NETFILTER)}
	permitted, refused := allow(filter...), refuse(unix.EPROTONOSUPPORT, filter...)
	permitted.Includes, refused.Excludes = &seccomp.Filter{Caps: []string{netAdmin}}, &seccomp.Filter{Caps: []string{netAdmin}}
	calls = append(calls, permitted, refused)
	for other := range uint64(unix.NETLINK_KOBJECT_UEVENT) {
		if other != unix.NETLINK_ROUTE && other != unix.NETLINK_NETFILTER {
			calls = append(calls, refuse(unix.EPROTONOSUPPORT, equal(family, unix.AF_NETLINK), equal(protocol, other)))
		}
	}
	return append(calls, refuse(unix.EPROTONOSUPPORT, equal(family, unix.AF_NETLINK),
		specs.LinuxSeccompArg{Index: protocol, Value: unix.NETLINK_KOBJECT_UEVENT, Op: specs.OpGreaterThan}))
}

// internet permits TCP and UDP of a family, and raw sockets, which take a capability. It refuses
// sockets of echo requests, whose messages no limit of a container counts, as a kernel does whose
// ping_group_range permits none.
func internet(of, echo uint64) []*seccomp.Syscall {
	raw := specs.LinuxSeccompArg{Index: kind, Value: typeBits, ValueTwo: unix.SOCK_RAW, Op: specs.OpMaskedEqual}
	datagram := specs.LinuxSeccompArg{Index: kind, Value: typeBits, ValueTwo: unix.SOCK_DGRAM, Op: specs.OpMaskedEqual}
	calls := []*seccomp.Syscall{
		allow(equal(family, of), raw),
		refuse(unix.EACCES, equal(family, of), datagram, equal(protocol, echo)),
	}
	for _, permitted := range internetProtocols {
		calls = append(calls, allow(equal(family, of), equal(protocol, permitted)))
	}
	return calls
}

func equal(index uint, value uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Value: value, Op: specs.OpEqualTo}
}

func allow(conditions ...specs.LinuxSeccompArg) *seccomp.Syscall {
	return &seccomp.Syscall{LinuxSyscall: specs.LinuxSyscall{Names: []string{"socket"}, Action: specs.ActAllow, Args: conditions}}
}

func refuse(errno unix.Errno, conditions ...specs.LinuxSeccompArg) *seccomp.Syscall {
	value := uint(errno)
	return &seccomp.Syscall{LinuxSyscall: specs.LinuxSyscall{Names: []string{"socket"}, Action: specs.ActErrno, ErrnoRet: &value, Args: conditions}}
}

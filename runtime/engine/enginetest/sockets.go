package enginetest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sandbox.internal/runtime/engine"
)

// anyError stands for an error that differs: runtimes compare 64 bits of arguments, or the 32 that
// the kernel reads.
const anyError = syscall.Errno(0xffff)

// sockets are arguments of socket(2), FAMILY:TYPE:PROTOCOL, and the error that the default profile
// has for them. Families that this kernel lacks are refused before it looks: then the error is the
// same.
var sockets = map[string]syscall.Errno{
	"1:1:0": 0, "1:2:0": 0, "pair:1:1:0": 0, // unix
	"2:1:0": 0, "2:1:6": 0, "2:2:17": 0, "2:0x80802:0": 0, "10:1:6": 0, // TCP and UDP, with flags
	"16:3:0": 0, "16:2:15": 0, // netlink of routes and of devices
	"2:2:1": syscall.EACCES, "10:2:58": syscall.EACCES, "2:0x80802:1": syscall.EACCES, // echo requests
	"2:0x100000002:0x100000001": anyError, // of which the kernel takes the lower half
	"16:3:2":                    syscall.EPROTONOSUPPORT, "16:3:4": syscall.EPROTONOSUPPORT, "16:3:6": syscall.EPROTONOSUPPORT,
	"16:3:9": syscall.EPROTONOSUPPORT, "16:3:16": syscall.EPROTONOSUPPORT, "16:3:0x100000002": anyError,
	"17:3:0": syscall.EAFNOSUPPORT, "33:2:2": syscall.EAFNOSUPPORT, "38:5:0": syscall.EAFNOSUPPORT, "40:1:0": syscall.EAFNOSUPPORT,
	"9:5:0": syscall.EAFNOSUPPORT, "45:1:0": syscall.EAFNOSUPPORT, "0xffffffff:1:0": syscall.EAFNOSUPPORT,
	"0x100000026:5:0": anyError,
	"2:1:132":         syscall.EPERM, "2:6:33": syscall.EPERM,
	"pair:30:1:0": syscall.EPERM, "pair:38:5:0": syscall.EPERM,
}

// testSockets: with the default profile, containers open sockets of the permitted families and
// protocols only, and with none also others.
func (s *suite) testSockets(t *testing.T) {
	if s.ownKernel {
		return // no profile filters its calls
	}
	tried := slices.Sorted(maps.Keys(sockets))
	open := func(security engine.Security) map[string]int {
		spec := s.spec(append([]string{"sockets"}, tried...)...)
		spec.Security = security
		found := map[string]int{}
		for line := range strings.Lines(s.output(t, spec)) {
			var numbers string
			var errno int
			if _, err := fmt.Sscan(line, &numbers, &errno); err != nil {
				t.Fatalf("the probe printed %q: %v", line, err)
			}
			found[numbers] = errno
		}
		return found
	}
	filtered := open(engine.Security{})
	for _, numbers := range tried {
		got, ok := filtered[numbers]
		want := sockets[numbers]
		if !ok || got != int(want) && (want != anyError || got == 0) {
			t.Errorf("socket %s: error %d (%v), want %d (%v)", numbers, got, syscall.Errno(got), want, want)
		}
	}
	// That they are refused means something where the kernel has them.
	unfiltered := open(engine.Security{SeccompProfile: "unconfined"})
	for _, numbers := range []string{"16:3:2", "16:3:16"} {
		if errno := unfiltered[numbers]; errno != 0 {
			t.Errorf("socket %s without a profile: %v", numbers, syscall.Errno(errno))
		}
	}
	// A sidecar writes rules of netfilter.
	admin := s.spec("sockets", "16:3:12")
	if got := s.output(t, admin); got != fmt.Sprintf("16:3:12 %d\n", syscall.EPROTONOSUPPORT) {
		t.Errorf("netfilter without NET_ADMIN: %q", got)
	}
	admin.Name += "-admin"
	admin.Security.AddCapabilities = []string{"NET_ADMIN"}
	if got := s.output(t, admin); got != "16:3:12 0\n" {
		t.Errorf("netfilter with NET_ADMIN: %q", got)
	}
}

package local_test

import (
	"strings"
	"testing"

	"sandbox.internal/test/e2e/conformance"
)

// TestDiskLimit: a sandbox that has filled its file system has its service, says what is wrong,
// disturbs no other one, and works again when something is deleted. A crash of the service changes
// nothing.
func TestDiskLimit(t *testing.T) {
	t.Parallel()
	limited := newMachines()
	limited.Local = "disk_mib = 64\n"
	s := conformance.Start(t, onLocal(limited), conformance.Plan{Program: true})
	one, two := s.Running(t, s.Idle()), s.Running(t, s.Idle())
	full, other := s.Enter(t, one), s.Enter(t, two)

	check := func() {
		t.Helper()
		got := full.Run(t, "dd if=/dev/zero of=/big bs=1M count=200")
		if !strings.Contains(got.Stderr, "No space left on device") {
			t.Errorf("200 MiB with a limit of 64: %+v", got)
		}
		full.Want(t, "echo usable; test $(stat -c %s /big) -gt 50000000 && echo full", "usable\nfull\n")
		other.Want(t, "dd if=/dev/zero of=/big bs=1M count=40 2>/dev/null && echo written && rm /big", "written\n")
		full.Want(t, "rm /big && dd if=/dev/zero of=/big bs=1M count=40 2>/dev/null && echo written && rm /big", "written\n")
	}
	check()
	s.Kill()
	s.Boot(t)
	full, other = s.Enter(t, one), s.Enter(t, two)
	check()
	s.Pause(t, one)
	s.Resume(t, one)
	s.Enter(t, one).Want(t, "df -m / | awk 'END { print ($2 > 40 && $2 <= 64) }'", "1\n")
}

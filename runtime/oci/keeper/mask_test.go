package keeper_test

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMask: the mount points that a runtime makes in the root of a container can be entered by
// every user, whatever the service's mask is.
func TestMask(t *testing.T) {
	before := unix.Umask(0o077)
	defer unix.Umask(before)
	h := newHost(t)
	if status := read(t, fmt.Sprintf("/proc/%d/status", h.client.PID())); !strings.Contains(status, "\nUmask:\t0022\n") {
		t.Errorf("the keeper of a service with the mask 077 has another than 022:\n%s", status)
	}
}

package conformance

import (
	"net/http"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// evidence logs what a failed test leaves, before it is deleted: the sandboxes, what their
// entrypoints printed last, and the processes that the kernel has ended for want of memory.
func (s *Service) evidence(t *testing.T) {
	t.Helper()
	for _, sandbox := range s.Everything(t) {
		t.Logf("sandbox %s: %+v", sandbox.ID, sandbox.Status)
		if log, err := s.Try(http.MethodGet, "/v1/sandboxes/"+sandbox.ID+"/logs?tail=20", ""); err == nil && log.Status == http.StatusOK {
			t.Logf("the log of the sandbox ends with:\n%s", log.Body)
		}
	}
	t.Logf("processes that the kernel has killed for want of memory:\n%s", outOfMemory())
}

// outOfMemory returns the last lines of the kernel's log about processes that it has killed for
// want of memory.
func outOfMemory() string {
	const most = 8
	log, err := os.OpenFile("/dev/kmsg", os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err.Error()
	}
	defer log.Close()
	var kills []string
	// A read returns one record, EPIPE when some were overwritten meanwhile, and EAGAIN at the end.
	for record := make([]byte, 8<<10); ; {
		n, err := unix.Read(int(log.Fd()), record)
		switch {
		case err == unix.EPIPE:
		case err != nil || n == 0:
			return strings.Join(kills[max(0, len(kills)-most):], "")
		case strings.Contains(string(record[:n]), "Killed process"):
			kills = append(kills, string(record[:n]))
		}
	}
}

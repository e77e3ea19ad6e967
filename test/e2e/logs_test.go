package e2e_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// TestLogsAreBounded has a sandbox print more than the engine may keep.
func TestLogsAreBounded(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	const lines, width = 40_000, 1000 // 40 MB
	script := fmt.Sprintf(`yes %s | head -n %d; echo done; sleep 1000`,
		strings.Repeat("x", width-1), lines)
	id := s.Running(t, conformance.Request(busyboxImage, "sh", "-c", script))
	path := "/v1/sandboxes/" + id + "/logs"
	wait.Until(t, "everything is printed",
		func() bool { return s.Send(t, http.MethodGet, path+"?tail=1", "").Body == "done\n" })
	if size := len(s.Send(t, http.MethodGet, path, "").Body); size < 5<<20 || size > 21<<20 {
		t.Errorf("the engine keeps %d bytes of 40 MB, want about 20 MB", size)
	}
	s.Delete(t, id)
	wait.Until(t, "it has ended",
		func() bool { return s.Get(t, id).Status.State == "Terminated" })
	kept := s.Send(t, http.MethodGet, path, "").Body
	if len(kept) == 0 || len(kept) > 64<<10 || !strings.HasSuffix(kept, "x\ndone\n") {
		t.Errorf("%d bytes are kept of the ended sandbox", len(kept))
	}
}

package conformance

import (
	"bufio"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"sandbox.internal/clients/go/lifecycle"
)

// testHostLoad: those who see all sandboxes see how busy their machine is, where that is the
// service's.
func testHostLoad(t *testing.T, s *Service) {
	const path = "/v1/host/load"
	WantProblem(t, s.As(t, userKey).Send(t, http.MethodGet, path, ""), 403, "FORBIDDEN", "user",
		"admin or viewer")
	if _, elsewhere := s.backend.Unprovoked["streamHostLoad 200"]; elsewhere {
		WantProblem(t, s.Send(t, http.MethodGet, path, ""), 501, "NOT_IMPLEMENTED", "its own machine")
		return
	}
	for _, key := range []string{AdminKey, ViewerKey} {
		response, cancel := s.As(t, key).Open(t, path)
		defer cancel()
		lines := bufio.NewScanner(response.Body)
		for count := 0; count < 2; {
			if !lines.Scan() {
				t.Fatalf("%s ends after %d events: %v", response.Status, count, lines.Err())
			}
			data, ok := strings.CutPrefix(lines.Text(), "data: ")
			if !ok {
				continue
			}
			var load lifecycle.HostLoad
			if err := json.Unmarshal([]byte(data), &load); err != nil {
				t.Fatal(err)
			}
			if load.CPUCount < 1 || load.MemoryUsedBytes < 1 || load.DiskTotalBytes < load.DiskUsedBytes {
				t.Errorf("%s", data)
			}
			count++
		}
	}
}

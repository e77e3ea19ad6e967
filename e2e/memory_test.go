package e2e_test

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"sandbox.internal/e2e/lives"
	"sandbox.internal/gen/lifecycle"
)

// TestChangesOfLargeMetadata changes one key of metadata that has 0.9 MB, two hundred times, while four clients read the events. What the
// service needs for that is bounded by what changes, and every reader gets every change.
func TestChangesOfLargeMetadata(t *testing.T) {
	t.Parallel()
	s := start(t, lives.Plan{Program: true})
	request := idle()
	request.Metadata = lifecycle.Metadata{}
	for i := range 225 {
		request.Metadata[strconv.Itoa(i)] = strings.Repeat("x", 4000)
	}
	id := s.Running(t, request)
	change := func(count int) {
		t.Helper()
		got := s.Send(t, http.MethodPatch, "/v1/sandboxes/"+id+"/metadata", fmt.Sprintf(`{"count":"%d"}`, count))
		if got.Status != http.StatusOK {
			t.Fatalf("change %d: %s", count, got)
		}
	}
	change(0)
	before := s.memory(t, "VmRSS")
	var readers []*lives.Stream
	for _, path := range []string{"/v1/events", "/v1/events?after=0", "/v1/sandboxes/" + id + "/events", "/v1/sandboxes/" + id + "/events"} {
		readers = append(readers, s.StreamEvents(t, path))
	}
	const changes = 200
	for i := range changes {
		change(i + 1)
	}
	for i, reader := range readers {
		next := 0
		for _, e := range reader.Until(func(e lives.Told) bool { return e.Metadata["count"] == strconv.Itoa(changes) }) {
			if e.Type != "metadata" {
				continue
			}
			if count, _ := strconv.Atoi(e.Metadata["count"]); next != 0 && count != next || len(e.Metadata) != 1 {
				t.Fatalf("reader %d: an event with %d keys and the count %d, expected was %d", i, len(e.Metadata), count, next)
			} else {
				next = count + 1
			}
		}
	}
	if grown := s.memory(t, "VmHWM") - before; grown > 100<<20 {
		t.Errorf("the service has grown by %d MiB, from %d", grown>>20, before>>20)
	} else {
		t.Logf("the service has grown by %d MiB, from %d", grown>>20, before>>20)
	}
}

// memory returns a figure of the program's memory, in bytes.
func (s *service) memory(t *testing.T, name string) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.PID))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == name+":" {
			kib, err := strconv.Atoi(fields[1])
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatalf("%s is not in %s", name, status)
	return 0
}

package e2e_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// TestChangesOfLargeMetadata changes one key of metadata that has 0.9 MB, two hundred times, while
// four clients read the events. What the service needs for that is bounded by what changes, and
// every reader gets every change.
func TestChangesOfLargeMetadata(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{Program: true})
	request := idle()
	request.Metadata = lifecycle.Metadata{}
	for i := range 225 {
		request.Metadata[strconv.Itoa(i)] = strings.Repeat("x", 4000)
	}
	id := s.Running(t, request)
	// Each answer has all of the metadata, 180 MB in all: checking them against the contract would
	// take the test ten times as long as the service.
	client := http.Client{Timeout: wait.Patience()}
	t.Cleanup(client.CloseIdleConnections)
	change := func(count int) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPatch,
			s.URL+"/v1/sandboxes/"+id+"/metadata",
			strings.NewReader(fmt.Sprintf(`{"count":"%d"}`, count)))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set(conformance.KeyHeader, conformance.AdminKey)
		request.Header.Set("Content-Type", "application/merge-patch+json")
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if size, err := io.Copy(io.Discard, response.Body); err != nil ||
			response.StatusCode != http.StatusOK || size < 900_000 {
			t.Fatalf("change %d: %s, %d bytes, %v", count, response.Status, size, err)
		}
	}
	change(0)
	before := s.memory(t, "VmRSS")
	var readers []*conformance.Stream
	for _, path := range []string{"/v1/events", "/v1/events?after=0",
		"/v1/sandboxes/" + id + "/events", "/v1/sandboxes/" + id + "/events"} {
		readers = append(readers, s.StreamEvents(t, path))
	}
	began := time.Now()
	const changes = 200
	for i := range changes {
		change(i + 1)
	}
	for i, reader := range readers {
		next := 0
		for _, e := range reader.Until(
			func(e conformance.StreamEvent) bool {
				return e.Metadata["count"] == strconv.Itoa(
					changes)
			}) {
			if e.Type != "metadata" {
				continue
			}
			if count, _ := strconv.Atoi(e.Metadata["count"]); next != 0 && count != next ||
				len(e.Metadata) != 1 {
				t.Fatalf("reader %d: an event with %d keys and the count %d, expected was %d", i,
					len(e.Metadata), count, next)
			} else {
				next = count + 1
			}
		}
	}
	grown := s.memory(t, "VmHWM") - before
	t.Logf("%d changes took %v; the service has grown by %d MiB, from %d", changes,
		time.Since(began).Round(time.Millisecond), grown>>20, before>>20)
	if grown > 100<<20 {
		t.Error("that is more than 100 MiB")
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

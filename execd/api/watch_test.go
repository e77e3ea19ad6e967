package api_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	gen "sandbox.internal/clients/go/execd"
	"sandbox.internal/test/wait"
)

// watch follows a path; each event is held to the contract.
func (d *daemon) watch(ctx context.Context, t *testing.T, path string, recursive bool) *stream {
	t.Helper()
	response, err := d.client.WatchFiles(ctx, &gen.WatchFilesParams{Path: path, Recursive: &recursive})
	return d.stream(t, response, err)
}

// file returns the next event of a watched path.
func (s *stream) file() gen.FileEvent {
	s.t.Helper()
	for {
		line, err := s.reader.ReadBytes('\n')
		must(s.t, err)
		if len(line) < 6 {
			continue
		}
		if err := s.contract.CheckEvent("FileEvent", line[6:]); err != nil {
			s.t.Error(err)
		}
		var event gen.FileEvent
		must(s.t, json.Unmarshal(line[6:], &event))
		return event
	}
}

// fileUntil reads until an event comes for a path.
func (s *stream) fileUntil(kind gen.FileEventType, path string) {
	s.t.Helper()
	for {
		if event := s.file(); event.Type == kind && value(event.Path) == path {
			return
		}
	}
}

func value(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func TestWatchFiles(t *testing.T) {
	t.Parallel()
	d := start(t)
	dir := filepath.Join(t.TempDir(), "watched")
	must(t, os.Mkdir(dir, 0o755))
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
	defer cancel()
	s := d.watch(ctx, t, dir, true)
	if first := s.file(); first.Type != gen.FileEventTypeReady || value(first.Path) != dir {
		t.Fatalf("the first event is %+v", first)
	}
	deep := filepath.Join(dir, "a", "b", "c")
	must(t, os.MkdirAll(deep, 0o755))
	file := write(t, filepath.Join(deep, "f"), "x")
	s.fileUntil(gen.FileEventTypeCreate, file)
	write(t, file, "y")
	s.fileUntil(gen.FileEventTypeWrite, file)
	must(t, os.RemoveAll(dir))
	s.fileUntil(gen.FileEventTypeRemove, dir)
	if left, err := s.reader.ReadBytes(0); string(left) != "" && string(left) != "\n" {
		t.Errorf("after the end: %q, %v", left, err)
	}
}

// watchRefusals are the errors of watching; more of them are with those of the machine.
func watchRefusals(t *testing.T, d *daemon) []answer {
	gone := filepath.Join(t.TempDir(), "gone")
	return []answer{
		{on: d, operation: "watchFiles", name: "no path", target: "GET /files/watch", status: 400, code: "INVALID_REQUEST_BODY", says: []string{"query parameter path", "required"}},
		{on: d, operation: "watchFiles", name: "no truth", target: "GET /files/watch?path=/&recursive=maybe", status: 400, code: "INVALID_REQUEST_BODY", says: []string{"query parameter recursive"}},
		{on: d, operation: "watchFiles", target: "GET /files/watch" + query(gone), status: 404, code: "FILE_NOT_FOUND", says: []string{gone}},
	}
}

// watchSuccesses watches a directory that nothing happens to.
func watchSuccesses(t *testing.T, d *daemon) {
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	d.watch(ctx, t, t.TempDir(), false).file()
}

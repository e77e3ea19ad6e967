package oci_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
)

// TestReopen: an Engine finds what the one before has left, and what has happened meanwhile.
func TestReopen(t *testing.T) {
	for _, handler := range runtimes(t) {
		t.Run(handler, func(t *testing.T) {
			s := newSite(t, handler)
			e := s.mustOpen(t)
			imageID := loadProbe(t, e)
			ctx := t.Context()
			running := probe(imageID, "count")
			running.Network, running.Publish = engine.NetworkOwn, []int{8080}
			runningID := start(t, e, running)
			ports := inspect(t, e, runningID).Ports
			frozenID := start(t, e, probe(imageID, "count"))
			if err := e.Freeze(ctx, frozenID); err != nil {
				t.Fatal(err)
			}
			endedID := start(t, e, probe(imageID, "exit", "5"))
			waitEnd(t, e, endedID)
			laterID := start(t, e, probe(imageID, "later", "100", "42"))
			createdID, err := e.Create(ctx, probe(imageID, "sleep"))
			if err != nil {
				t.Fatal(err)
			}
			closeEngine(t, e)

			e = s.mustOpen(t)
			defer closeEngine(t, e)
			for id, want := range map[string]engine.Status{
				runningID: engine.StatusRunning, frozenID: engine.StatusFrozen, endedID: engine.StatusExited, createdID: engine.StatusCreated,
			} {
				if c := inspect(t, e, id); c.Status != want {
					t.Errorf("a container that was %s is %s", want, c.Status)
				}
			}
			if c := inspect(t, e, runningID); len(c.Ports) != 1 || c.Ports[8080] != ports[8080] {
				t.Errorf("the ports of the running container were %v and are %v", ports, c.Ports)
			}
			if c := waitEnd(t, e, endedID); c.ExitCode != 5 {
				t.Errorf("exit code %d, want 5", c.ExitCode)
			}
			if c := waitEnd(t, e, laterID); c.ExitCode != 42 {
				t.Errorf("exit code %d of one that ended meanwhile, want 42", c.ExitCode)
			}
			if _, err := e.Create(ctx, running); !errors.Is(err, engine.ErrExists) {
				t.Errorf("the name of the running container can be taken again: %v", err)
			}
			if err := e.Thaw(ctx, frozenID); err != nil {
				t.Error(err)
			}
			if err := e.Start(ctx, createdID); err != nil {
				t.Error(err)
			}
			log, err := e.OpenLog(ctx, frozenID, engine.LogOptions{Follow: true})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := log.Read(make([]byte, 1)); err != nil {
				t.Errorf("a container that was thawed writes nothing: %v", err)
			}
			if err := log.Close(); err != nil {
				t.Error(err)
			}
			removeAll(t, e)
		})
	}
}

// TestOneAtATime: two Engines never use the same directory.
func TestOneAtATime(t *testing.T) {
	s := newSite(t, "crun")
	e := s.mustOpen(t)
	defer closeEngine(t, e)
	second, err := s.open(context.Background(), io.Discard)
	if err == nil {
		closeEngine(t, second)
		t.Fatal("a second Engine opened the directory")
	}
}

// TestRecordThatCannotBeRead: its container may run, so the Engine does not open, and nothing of it
// is removed. One that is cut off is what a loss of power leaves.
func TestRecordThatCannotBeRead(t *testing.T) {
	s := newSite(t, "crun")
	e := s.mustOpen(t)
	imageID := loadProbe(t, e)
	id := start(t, e, probe(imageID, "sleep"))
	cutID, err := e.Create(t.Context(), probe(imageID, "sleep"))
	if err != nil {
		t.Fatal(err)
	}
	closeEngine(t, e)
	path := func(id string) string { return filepath.Join(s.Directory, "containers", id, "container.json") }
	content, err := os.ReadFile(path(id))
	if err != nil {
		t.Fatal(err)
	}
	write := func(id string, content []byte) {
		t.Helper()
		if err := os.WriteFile(path(id), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(id, bytes.Replace(content, []byte(`"Spec":{`), []byte(`"Spec":[],"Other":{`), 1))
	write(cutID, content[:len(content)/2])
	if e, err := s.open(t.Context(), io.Discard); err == nil {
		closeEngine(t, e)
		t.Fatal("the engine opened")
	} else if !strings.Contains(err.Error(), path(id)) {
		t.Errorf("the error %q does not name the record", err)
	}
	write(id, content)
	e = s.mustOpen(t)
	defer closeEngine(t, e)
	if c := inspect(t, e, id); c.Status != engine.StatusRunning {
		t.Errorf("the container is %s", c.Status)
	}
	if _, err := e.Inspect(t.Context(), cutID); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("the container whose record is cut off: %v", err)
	}
	removeAll(t, e)
}

// TestReboot: after everything but the disk is gone, containers that ran have been killed, and can
// be removed.
func TestReboot(t *testing.T) {
	s := newSite(t, "crun")
	e := s.mustOpen(t)
	imageID := loadProbe(t, e)
	spec := probe(imageID, "sleep")
	spec.Network, spec.Publish = engine.NetworkOwn, []int{8080}
	id := start(t, e, spec)
	createdID, err := e.Create(t.Context(), probe(imageID, "exit", "3"))
	if err != nil {
		t.Fatal(err)
	}
	closeEngine(t, e)
	s.reboot(t, id)

	e = s.mustOpen(t)
	if c := inspect(t, e, id); c.Status != engine.StatusExited || c.ExitCode != 137 || len(c.Ports) > 0 {
		t.Errorf("a container that ran is %s with exit code %d and ports %v; want exited, 137", c.Status, c.ExitCode, c.Ports)
	}
	if err := e.Start(t.Context(), createdID); err != nil {
		t.Errorf("one that was not started yet: %v", err)
	}
	if c := waitEnd(t, e, createdID); c.ExitCode != 3 {
		t.Errorf("exit code %d, want 3", c.ExitCode)
	}
	removeAll(t, e)
	closeEngine(t, e)
	s.checkNothingLeft(t)
}

// reboot ends everything of the site that the kernel has of these containers, and makes their
// records those of another start of the host.
func (s site) reboot(t *testing.T, ids ...string) {
	t.Helper()
	killKeeper(t, s)
	for _, id := range ids {
		s.endOfBoot(t, id)
	}
	if err := os.RemoveAll(s.RunDirectory); err != nil {
		t.Fatal(err)
	}
}

// endOfBoot is reboot for one container.
func (s site) endOfBoot(t *testing.T, id string) {
	t.Helper()
	record := filepath.Join(s.Directory, "containers", id, "container.json")
	content, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := os.ReadFile(filepath.Join(s.Directory, "containers", id, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(strings.TrimSpace(string(pid)))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(number, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	before := bytes.Replace(content, bytes.TrimSpace(boot), []byte("00000000-0000-0000-0000-000000000000"), 1)
	if bytes.Equal(before, content) {
		t.Fatal("the record does not say which start of the host it belongs to")
	}
	if err := os.WriteFile(record, before, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestLeftoverThatCannotBeRemoved: it is reported, and keeps neither the Engine from opening nor
// anything else from being removed.
func TestLeftoverThatCannotBeRemoved(t *testing.T) {
	s := newSite(t, "crun")
	closeEngine(t, s.mustOpen(t))
	stuck := filepath.Join(s.RunDirectory, "roots", strings.Repeat("0", 32))
	others := []string{filepath.Join(s.RunDirectory, "roots", strings.Repeat("f", 32)), filepath.Join(s.Directory, ".unfinished")}
	for _, directory := range append(others, filepath.Join(stuck, "in the way")) {
		if err := os.MkdirAll(directory, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	e, err := s.open(t.Context(), &log)
	if err != nil {
		t.Fatal(err)
	}
	defer closeEngine(t, e)
	if !strings.Contains(log.String(), "remove "+stuck+": directory not empty") {
		t.Errorf("the log does not report %s:\n%s", stuck, log.String())
	}
	for _, path := range others {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s was not removed: %v", path, err)
		}
	}
	if err := os.RemoveAll(stuck); err != nil {
		t.Error(err)
	}
}

// TestRemovalThatCannotBeFinished: one container that cannot be removed keeps no other from being
// served, and can be removed later.
func TestRemovalThatCannotBeFinished(t *testing.T) {
	s := newSite(t, "crun")
	e := s.mustOpen(t)
	imageID := loadProbe(t, e)
	stuck, other := start(t, e, probe(imageID, "sleep")), start(t, e, probe(imageID, "sleep"))
	obstacle := filepath.Join(s.RunDirectory, "roots", stuck, "obstacle") // only an empty directory is removed
	if err := os.MkdirAll(filepath.Dir(obstacle), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(obstacle, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := e.Remove(t.Context(), stuck); err == nil {
		t.Fatal("the container was removed in spite of the obstacle")
	}
	closeEngine(t, e)

	e = s.mustOpen(t)
	defer closeEngine(t, e)
	if c, err := e.Inspect(t.Context(), other); err != nil || c.Status != engine.StatusRunning {
		t.Errorf("the other container: %+v, %v", c, err)
	}
	if err := os.Remove(obstacle); err != nil {
		t.Fatal(err)
	}
	remove(t, e, stuck)
	remove(t, e, other)
}

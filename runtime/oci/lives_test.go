package oci_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci"
	"sandbox.internal/test/wait"
)

// TestJoin: a container is in the network of another one, under its own name, and only while that
// one runs.
func TestJoin(t *testing.T) {
	s := newSite(t, "crun")
	e := s.mustOpen(t)
	defer closeEngine(t, e)
	imageID := loadProbe(t, e)
	owner := probe(imageID, "sleep")
	owner.Network, owner.Publish, owner.PublishIP = engine.NetworkOwn, []int{8080}, "127.0.0.1"
	ownerID := start(t, e, owner)
	joined := probe(imageID, "serve", "8080")
	joined.Network, joined.Join = engine.NetworkOwn, owner.Name
	joinedID := start(t, e, joined)
	var said string
	wait.Until(t, "the port of the other container answers", func() bool {
		said = answer(inspect(t, e, ownerID).Ports[8080])
		return said == "hello from 8080"
	}, func() any { return said })
	if ports := inspect(t, e, joinedID).Ports; len(ports) > 0 {
		t.Errorf("the one that joined publishes %v itself", ports)
	}
	hosts := joined
	hosts.Name, hosts.Entrypoint = hosts.Name+"-hosts", []string{"/probe", "cat", "/etc/hosts", "/etc/hostname"}
	const nameBytes = 12 + 1 // with the newline
	if text, _ := output(t, e, hosts); len(text) < nameBytes || strings.Count(text, text[len(text)-nameBytes:]) != 2 {
		t.Errorf("the own name of the container is not in its hosts: %q", text)
	} else if strings.Contains(text, "::") {
		t.Errorf("a network without IPv6 has its addresses in hosts: %q", text)
	}
	if err := e.Remove(t.Context(), ownerID); err != nil {
		t.Fatal(err)
	}
	late := joined
	late.Name += "-late"
	id, err := e.Create(t.Context(), late)
	if err == nil {
		err = e.Start(t.Context(), id)
	}
	if err == nil {
		t.Error("a container joined a container that is gone")
	}
	removeAll(t, e)
}

// answer returns what a port of this machine sends.
func answer(port int) string {
	connection, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), wait.Patience())
	if err != nil {
		return err.Error()
	}
	defer func() { _ = connection.Close() }()
	_ = connection.SetDeadline(wait.Deadline())
	text, _ := io.ReadAll(connection)
	return string(text)
}

// TestLivesKeepNothing: service and keeper have as many open files after many lives as before.
func TestLivesKeepNothing(t *testing.T) {
	s := newSite(t, "crun")
	e := s.mustOpen(t)
	defer closeEngine(t, e)
	imageID := loadProbe(t, e)
	directory := t.TempDir()
	lives := func(n int) {
		var group sync.WaitGroup
		for range n {
			group.Go(func() {
				spec := probe(imageID, "later", "20", "0")
				spec.Network, spec.Publish = engine.NetworkOwn, []int{8080}
				spec.Mounts = []engine.Mount{{HostPath: directory, Target: "/data"}}
				id := start(t, e, spec)
				log, err := e.OpenLog(t.Context(), id, engine.LogOptions{Follow: true})
				if err == nil {
					_, err = io.Copy(io.Discard, log)
					_ = log.Close()
				}
				if err == nil {
					err = e.Remove(t.Context(), id)
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
	}
	lives(5)
	keeper := keeperOf(t, s)
	type open struct{ files, keeperFiles, goroutines int }
	count := func() open { return open{openFiles(t, os.Getpid()), openFiles(t, keeper), runtime.NumGoroutine()} }
	// Namespaces are made ahead for a while after the last start.
	before, since := count(), time.Now()
	wait.Until(t, "the number of open files is the same for a second", func() bool {
		if now := count(); now != before {
			before, since = now, time.Now()
		}
		return time.Since(since) >= time.Second
	})
	for range 4 {
		lives(10)
	}
	var now open
	wait.Until(t, fmt.Sprintf("as many are open as before, %+v", before), func() bool {
		now = count()
		return now.files <= before.files && now.keeperFiles <= before.keeperFiles && now.goroutines <= before.goroutines
	}, func() any { return now })
	s.checkNoMounts(t)
}

func keeperOf(t *testing.T, s site) int {
	t.Helper()
	for pid, command := range processes(t) {
		if strings.Contains(command, "sandbox-keeper") && strings.Contains(command, s.RunDirectory) {
			number, err := strconv.Atoi(pid)
			if err != nil {
				t.Fatal(err)
			}
			return number
		}
	}
	t.Fatal("no keeper runs")
	return 0
}

func openFiles(t *testing.T, pid int) int {
	t.Helper()
	found, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "fd"))
	if err != nil {
		t.Fatal(err)
	}
	return len(found)
}

// TestHundredAtOnce: that many are started side by side, and each answers at its own port.
func TestHundredAtOnce(t *testing.T) {
	s := newSite(t, "crun")
	t.Run("lives", func(t *testing.T) {
		e := s.mustOpen(t)
		defer closeEngine(t, e)
		imageID := loadProbe(t, e)
		var group sync.WaitGroup
		for range 100 {
			group.Go(func() { serveOnce(t, e, imageID) })
		}
		group.Wait()
		removeAll(t, e)
	})
	s.checkNothingLeft(t)
}

func serveOnce(t *testing.T, e *oci.Engine, imageID string) {
	t.Helper()
	spec := probe(imageID, "serve", "8080")
	spec.Network, spec.Publish, spec.PublishIP = engine.NetworkOwn, []int{8080}, "127.0.0.1"
	id, err := e.Create(t.Context(), spec)
	if err == nil {
		err = e.Start(t.Context(), id)
	}
	if err != nil {
		t.Error(err)
		return
	}
	answers := func() bool { return answer(inspect(t, e, id).Ports[8080]) == "hello from 8080" }
	if !wait.Within(wait.Patience(), answers) {
		t.Errorf("container %s does not answer within %v", id, wait.Patience())
	}
}

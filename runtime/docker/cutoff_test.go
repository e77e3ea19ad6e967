package docker_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"sandbox.internal/runtime/docker"
	"sandbox.internal/runtime/engine"
	"sandbox.internal/test/wait"
)

// TestSnapshotCutOff: after a call to take a snapshot whose context has ended, the container is
// frozen by the engine for a while more. That is not seen, and a freeze that follows lasts.
func TestSnapshotCutOff(t *testing.T) {
	b := newBench(t)
	name := b.run(t, b.spec("many", "/data", "100", "1000000"))
	b.awaitLog(t, name, "made")
	wait.Until(t, "a call is cut off while the engine freezes the container", func() bool { return b.cutOff(t, name) })
	if status := b.status(t, name); status != engine.StatusRunning {
		t.Errorf("while the engine goes on with the snapshot the container is %s", status)
	}
	if err := b.Freeze(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if status := b.status(t, name); status != engine.StatusFrozen {
		t.Errorf("the container that was frozen is %s", status)
	}
	if names := b.images(t); len(names) > 0 {
		t.Errorf("there are the images %q", names)
	}
}

// cutOff takes a snapshot and ends the call's context while the container is frozen for it. It
// reports false, and removes the snapshot, when the call was quicker.
func (b bench) cutOff(t *testing.T, name string) bool {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	taken, snapshot := make(chan error, 1), "docker-test-"+uuid.NewString()
	go func() {
		_, err := b.TakeSnapshot(ctx, name, engine.SnapshotOptions{Name: snapshot, Labels: b.labels})
		taken <- err
	}()
	wait.Until(t, "the engine freezes the container", func() bool {
		found, err := b.api.ContainerInspect(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		return found.State.Paused || len(taken) > 0
	})
	cancel()
	err := wait.For(t, "the end of the call", taken)
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if removed := b.RemoveSnapshot(t.Context(), snapshot); removed != nil {
		t.Fatal(removed)
	}
	return err != nil
}

// TestThawDuringSnapshot: a snapshot of a frozen container that another process thaws meanwhile, as
// the engine does at the end of an earlier commit, is made again with the container frozen.
func TestThawDuringSnapshot(t *testing.T) {
	b := newBench(t)
	name := b.run(t, b.spec("journal", "/first", "/second"))
	b.awaitLog(t, name, "journal")
	if err := b.Freeze(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	engineOf := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", "engine" },
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return b.api.Dialer()(ctx) },
		},
	}
	var commits atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/commit") && commits.Add(1) == 1 {
			if err := b.api.ContainerUnpause(r.Context(), name); err != nil {
				t.Error(err)
			}
			r.URL.RawQuery += "&pause=0" // it was frozen when the engine began
		}
		engineOf.ServeHTTP(w, r)
	}))
	defer server.Close()
	e, err := docker.New(docker.Options{Host: "tcp://" + server.Listener.Addr().String(), Bounded: b.labels, Logger: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close() }()
	snapshot := "docker-test-" + uuid.NewString()
	b.removeAfter(t, snapshot)
	taken, err := e.TakeSnapshot(t.Context(), name, engine.SnapshotOptions{Name: snapshot, Labels: b.labels})
	if err != nil || taken.Frozen == 0 || commits.Load() != 2 {
		t.Errorf("after %d commits the snapshot is %+v, %v", commits.Load(), taken, err)
	}
	if names := b.images(t); len(names) != 1 {
		t.Errorf("there are the images %q", names)
	}
}

// TestRollbackCutOffWhileRemoving: a container that is still being removed, because the container
// of a rollback that was cut off takes its place, is not missing: the other one is found.
func TestRollbackCutOffWhileRemoving(t *testing.T) {
	const name = "box"
	old, next := strings.Repeat("a", 64), strings.Repeat("b", 64)
	var removed, renamed atomic.Bool
	container := func(id, name, status, replaces string) string {
		return fmt.Sprintf(`{"Id": %q, "Name": "/%s", "State": {"Status": %q}, "HostConfig": {}, "Config": {"Labels": {"sandbox.internal/docker-replaces": %q}}}`,
			id, name, status, replaces)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Api-Version", "1.41")
		_, path, _ := strings.Cut(r.URL.Path, "/containers/")
		answer := ""
		switch {
		case path == "":
			answer = "OK"
		case path == old+"/wait" && r.URL.Query().Get("condition") == "removed":
			removed.Store(true)
			answer = `{"StatusCode": 0}`
		case path == next+"/rename" && removed.Load():
			renamed.Store(true)
			w.WriteHeader(http.StatusNoContent)
			return
		case path == name+"/json" && renamed.Load():
			answer = container(next, name, "created", old)
		case path == name+"/json" && !removed.Load():
			answer = container(old, name, "removing", "")
		case path == name+".sandbox-next/json" && !renamed.Load():
			answer = container(next, name+".sandbox-next", "created", old)
		default:
			w.WriteHeader(http.StatusNotFound)
			answer = `{"message": "No such container"}`
		}
		_, _ = w.Write([]byte(answer))
	}))
	defer server.Close()
	e, err := docker.New(docker.Options{Host: "tcp://" + server.Listener.Addr().String(), Logger: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close() }()
	found, err := e.Inspect(t.Context(), name)
	if err != nil || found.ID != next || found.Status != engine.StatusStopped {
		t.Errorf("the container is %+v, %v", found, err)
	}
}

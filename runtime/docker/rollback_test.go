package docker_test

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/google/uuid"

	"sandbox.internal/runtime/docker"
	"sandbox.internal/runtime/engine"
)

// TestRollbackJoined: a container that joins the network of another one starts in the network that
// was made in the place of the first.
func TestRollbackJoined(t *testing.T) {
	b := newBench(t)
	owner := b.spec("sleep")
	owner.Publish, owner.PublishIP = []int{8080}, "127.0.0.1"
	b.run(t, owner)
	spec := b.spec("again", "/starts")
	spec.Join = owner.Name
	name := b.run(t, spec)
	b.awaitLog(t, name, "start 1")
	taken := b.take(t, name)
	if err := b.Rollback(t.Context(), name, taken.Name); err != nil {
		t.Fatal(err)
	}
	if err := b.Remove(t.Context(), owner.Name); err != nil {
		t.Fatal(err)
	}
	if err := b.Start(t.Context(), name); !errors.Is(err, engine.ErrNetwork) {
		t.Errorf("without the network that it joins: %v, want ErrNetwork", err)
	}
	if status := b.status(t, name); status != engine.StatusStopped {
		t.Errorf("the container is %s", status)
	}
	b.run(t, owner)
	if err := b.Start(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	b.awaitLog(t, name, "start 2")
	made, err := b.api.ContainerInspect(t.Context(), owner.Name)
	if err != nil {
		t.Fatal(err)
	}
	if found, err := b.api.ContainerInspect(t.Context(), name); err != nil || string(found.HostConfig.NetworkMode) != "container:"+made.ID {
		t.Errorf("the container is in the network %s, %v", found.HostConfig.NetworkMode, err)
	}
	// One that has run in a network that is gone cannot be connected, and can be rolled back.
	if err := errors.Join(b.Stop(t.Context(), name, 0), b.Remove(t.Context(), owner.Name)); err != nil {
		t.Fatal(err)
	}
	b.run(t, owner)
	if err := b.Start(t.Context(), name); !errors.Is(err, engine.ErrNetwork) {
		t.Errorf("in another network: %v, want ErrNetwork", err)
	}
	if err := errors.Join(b.Rollback(t.Context(), name, taken.Name), b.Start(t.Context(), name)); err != nil {
		t.Fatal(err)
	}
	b.awaitLog(t, name, "start 2")
}

// TestRollbackToLinks: links that a container has made lead no mount elsewhere after a rollback,
// and a rollback that is refused leaves the container as it was.
func TestRollbackToLinks(t *testing.T) {
	b := newBench(t)
	spec := b.spec("sleep")
	spec.Mounts = []engine.Mount{{HostPath: t.TempDir(), Target: "/data/volume"}}
	plain := spec
	plain.Name, plain.Mounts = "docker-test-"+uuid.NewString(), nil
	hostile := b.run(t, plain)
	link := archiveWith(t, tar.Header{Name: "data", Typeflag: tar.TypeSymlink, Linkname: "/dev"}, nil)
	if err := b.api.CopyToContainer(t.Context(), hostile, "/", link, container.CopyToContainerOptions{}); err != nil {
		t.Fatal(err)
	}
	taken := b.take(t, hostile)
	name := b.run(t, spec)
	before, err := b.Inspect(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	var target *engine.TargetError
	if err := b.Rollback(t.Context(), name, taken.Name); !errors.As(err, &target) {
		t.Errorf("a rollback to a link: %v, want a TargetError", err)
	}
	if after, err := b.Inspect(t.Context(), name); err != nil || after.ID != before.ID || after.Status != engine.StatusRunning {
		t.Errorf("the container is %+v, %v", after, err)
	}
	if _, err := b.Inspect(t.Context(), name+".sandbox-next"); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("a container is left: %v", err)
	}
	spec.Name, spec.Snapshot = "docker-test-"+uuid.NewString(), taken.Name
	if _, err := b.Create(t.Context(), spec); !errors.As(err, &target) {
		t.Errorf("a container with a link: %v, want a TargetError", err)
	}
}

// TestRollbackOfForgedLabels: what an image says by labels that a container mounts is not mounted,
// where the container has them from its image because an earlier version of the service made it.
func TestRollbackOfForgedLabels(t *testing.T) {
	b := newBench(t)
	for _, base := range []string{"", b.imageID} {
		forged, err := b.api.ContainerCreate(t.Context(), &container.Config{Image: b.imageID, Entrypoint: []string{"/probe", "sleep"}}, nil, nil, nil, "")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = b.Remove(context.WithoutCancel(t.Context()), forged.ID) }()
		made, err := b.api.ContainerCommit(t.Context(), forged.ID, container.CommitOptions{Config: &container.Config{Labels: map[string]string{
			"sandbox.internal/docker-mounts": `[{"HostPath": "/", "Target": "/host"}]`, "sandbox.internal/docker-image": base,
		}}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := b.RemoveImage(context.WithoutCancel(t.Context()), made.ID); err != nil {
				t.Error(err)
			}
		}()
		name := "docker-test-" + uuid.NewString()
		if _, err := b.api.ContainerCreate(t.Context(), &container.Config{Image: made.ID, Labels: b.labels}, nil, nil, nil, name); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = b.Remove(context.WithoutCancel(t.Context()), name) }()
		if err := b.Start(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		taken := b.take(t, name)
		if taken.ImageID != made.ID {
			t.Errorf("image label %q: the snapshot is of the image %s, want %s", base, taken.ImageID, made.ID)
		}
		if err := b.Rollback(t.Context(), name, taken.Name); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("image label %q: %v, want ErrInvalid", base, err)
		}
		if found, err := b.api.ContainerInspect(t.Context(), name); err != nil || len(found.HostConfig.Mounts) > 0 {
			t.Errorf("image label %q: the container mounts %+v, %v", base, found.HostConfig.Mounts, err)
		}
		if err := errors.Join(b.Remove(t.Context(), name), b.RemoveSnapshot(t.Context(), taken.Name)); err != nil {
			t.Error(err)
		}
	}
}

// TestRollbackKeepsTheSpec: a container has the configuration after a rollback that it had before.
func TestRollbackKeepsTheSpec(t *testing.T) {
	b := newBench(t)
	spec := b.spec("again", "/starts")
	spec.Env = map[string]string{"GIVEN": "value"}
	spec.Publish, spec.PublishIP = []int{8080}, "127.0.0.1"
	spec.Mounts = []engine.Mount{{HostPath: t.TempDir(), Target: "/host", ReadOnly: true}}
	spec.Resources = engine.Resources{NanoCPUs: 5e8, MemoryBytes: 64 << 20, PIDs: 50, SharedMemoryBytes: 8 << 20}
	spec.ShowLimits = true
	spec.Security = engine.Security{DropCapabilities: []string{"NET_RAW"}, NoNewPrivileges: true}
	spec.LogBytes = 1 << 20
	name := b.run(t, spec)
	b.awaitLog(t, name, "start 1")
	before := b.describe(t, name)
	taken := b.take(t, name)
	for range 2 {
		if err := errors.Join(b.Rollback(t.Context(), name, taken.Name), b.Start(t.Context(), name)); err != nil {
			t.Fatal(err)
		}
		b.awaitLog(t, name, "start 2")
		if after := b.describe(t, name); after != before {
			t.Errorf("before the rollback the container was\n%s\nand then\n%s", before, after)
		}
	}
}

// describe returns what decides how a container runs.
func (b bench) describe(t *testing.T, name string) string {
	t.Helper()
	found, err := b.api.ContainerInspect(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	found.Config.Image = ""
	delete(found.Config.Labels, "sandbox.internal/docker-replaces")
	delete(found.Config.Labels, "sandbox.internal/docker-snapshot")
	encoded, err := json.MarshalIndent([]any{found.Config, found.HostConfig}, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(encoded)
}

// TestRollbackKilled: a service that is killed while it rolls a container back leaves a container
// of that name, with its own files or those of the snapshot, and the call can be repeated.
func TestRollbackKilled(t *testing.T) {
	s := buildSnapshotter(t)
	for failpoint, want := range map[string]engine.Status{docker.ReplacingFailpoint: engine.StatusRunning, docker.RemovedFailpoint: engine.StatusStopped} {
		for _, then := range []string{"inspect", "list", "roll back", "start", "remove"} {
			t.Run(failpoint+", then "+then, func(t *testing.T) {
				b := newBench(t)
				name := b.run(t, b.spec("again", "/starts"))
				b.awaitLog(t, name, "start 1")
				taken := b.take(t, name)
				s.kill(t, b, failpoint, "rollback", name, taken.Name)
				b.afterRollback(t, then, name, taken.Name, want)
				left, err := b.api.ContainerList(t.Context(), container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("name", name))})
				if most := 2; err != nil || len(left) > most || then == "remove" && len(left) > 0 {
					t.Errorf("there are %d containers, %v", len(left), err)
				}
			})
		}
	}
}

// afterRollback goes on after a rollback that was cut off.
func (b bench) afterRollback(t *testing.T, then, name, snapshot string, want engine.Status) {
	t.Helper()
	switch then {
	case "inspect":
		if status := b.status(t, name); status != want {
			t.Errorf("the container is %s, want %s", status, want)
		}
	case "list":
		list, err := b.List(t.Context(), b.labels)
		at := slices.IndexFunc(list, func(c engine.Container) bool { return c.Name == name })
		if err != nil || at < 0 || list[at].Status != want {
			t.Errorf("the containers are %+v, %v", list, err)
		}
	case "roll back":
		if err := errors.Join(b.Rollback(t.Context(), name, snapshot), b.Start(t.Context(), name)); err != nil {
			t.Fatal(err)
		}
		b.awaitLog(t, name, "start 2")
	case "start":
		if err := b.Start(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		if status := b.status(t, name); status != engine.StatusRunning {
			t.Errorf("the container is %s", status)
		}
	case "remove":
		if err := b.Remove(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Inspect(t.Context(), name); !errors.Is(err, engine.ErrNotFound) {
			t.Errorf("the removed container: %v", err)
		}
	}
}

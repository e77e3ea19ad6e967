package enginetest

import (
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/test/wait"
)

func (s *suite) testInfo(t *testing.T) {
	info, err := s.engine.Info(t.Context())
	if err != nil {
		t.Fatalf("Info: %v", err)
	}
	if info.Name == "" || info.Version == "" || info.CPUs < 1 || info.MemoryBytes < 1<<20 {
		t.Errorf("incomplete: %+v", info)
	}
	if info.CgroupVersion != "1" && info.CgroupVersion != "2" {
		t.Errorf("cgroup version %q", info.CgroupVersion)
	}
	for _, path := range info.OwnPaths {
		if !filepath.IsAbs(path) || filepath.Clean(path) != path {
			t.Errorf("path %q of the engine is not absolute and clean", path)
		}
	}
	if len(info.OwnPaths) == 0 {
		t.Error("it names no path of its own")
	}
}

func (s *suite) testCreate(t *testing.T) {
	spec := s.spec("sleep")
	id := s.create(t, spec)
	c := s.inspect(t, id)
	if c.Status != engine.StatusCreated {
		t.Errorf("a created container is %s", c.Status)
	}
	if c.Name != spec.Name || c.ID != id || c.Labels[runLabel] != s.run {
		t.Errorf("got name %q, id %q, labels %v", c.Name, c.ID, c.Labels)
	}
}

func (s *suite) testCreateRefuses(t *testing.T) {
	taken := s.spec("sleep")
	s.create(t, taken)
	for name, test := range map[string]struct {
		change func(*engine.ContainerSpec)
		want   error
	}{
		"taken name":      {func(c *engine.ContainerSpec) { c.Name = taken.Name }, engine.ErrExists},
		"too many CPUs":   {func(c *engine.ContainerSpec) { c.Resources.NanoCPUs = 1e6 * 1e9 }, engine.ErrInvalid},
		"tiny memory":     {func(c *engine.ContainerSpec) { c.Resources.MemoryBytes = 1024 }, engine.ErrInvalid},
		"impossible port": {func(c *engine.ContainerSpec) { c.Publish = []int{70000} }, engine.ErrInvalid},
		"unknown runtime": {func(c *engine.ContainerSpec) { c.Runtime = "enginetest-none" }, engine.ErrInvalid},
		"no such image":   {func(c *engine.ContainerSpec) { c.ImageID = "sha256:" + strings.Repeat("0", 64) }, engine.ErrImage},
	} {
		t.Run(name, func(t *testing.T) {
			spec := s.spec("sleep")
			test.change(&spec)
			id, err := s.engine.Create(t.Context(), spec)
			if err == nil {
				_ = s.engine.Remove(t.Context(), id)
			}
			wantError(t, err, test.want)
		})
	}
}

func (s *suite) testStart(t *testing.T) {
	wantError(t, s.engine.Start(t.Context(), "enginetest-"+uuid.NewString()), engine.ErrNotFound)
	id := s.start(t, s.spec("sleep"))
	if c := s.inspect(t, id); c.Status != engine.StatusRunning {
		t.Errorf("a started container is %s", c.Status)
	}
}

func (s *suite) testExitCode(t *testing.T) {
	for name, test := range map[string]struct {
		spec engine.ContainerSpec
		want int
	}{
		"zero": {s.spec("exit", "0"), 0},
		"some": {s.spec("exit", "42"), 42},
	} {
		t.Run(name, func(t *testing.T) {
			c := s.waitStatus(t, s.start(t, test.spec), engine.StatusExited)
			if c.ExitCode != test.want || c.OOMKilled {
				t.Errorf("exit code %d, out of memory %t; want %d, false", c.ExitCode, c.OOMKilled, test.want)
			}
		})
	}
}

func (s *suite) testStartRefuses(t *testing.T) {
	spec := s.spec()
	spec.Entrypoint = []string{"/no/such/program"}
	id := s.create(t, spec)
	wantError(t, s.engine.Start(t.Context(), id), engine.ErrInvalid, "/no/such/program")
	if c := s.inspect(t, id); c.Error == "" {
		t.Error("Inspect does not say why the container could not start")
	}
	gpus := s.spec("sleep")
	gpus.Resources.GPUs = 4096 // no machine has so many
	id = s.create(t, gpus)
	wantError(t, s.engine.Start(t.Context(), id), engine.ErrInvalid)
	elsewhere := s.spec("sleep")
	elsewhere.Publish, elsewhere.PublishIP = []int{8080}, "192.0.2.1" // an address reserved for documentation (RFC 5737)
	id = s.create(t, elsewhere)
	wantError(t, s.engine.Start(t.Context(), id), engine.ErrNetwork)
}

func (s *suite) testFreeze(t *testing.T) {
	ctx := t.Context()
	id := s.start(t, s.spec("count"))
	s.waitLog(t, id, "5\n")
	for range 2 { // the second finds it frozen
		if err := s.engine.Freeze(ctx, id); err != nil {
			t.Fatalf("Freeze: %v", err)
		}
	}
	if c := s.inspect(t, id); c.Status != engine.StatusFrozen {
		t.Fatalf("a frozen container is %s", c.Status)
	}
	// What was written before may reach the log a moment later.
	var frozen string
	wait.Until(t, "the output of a frozen container has ended", func() bool {
		frozen = s.logs(t, id, 1)
		// A process that still ran would write ten more lines in this time; there is no event to
		// wait for.
		timer := time.NewTimer(100 * time.Millisecond)
		<-timer.C
		return s.logs(t, id, 1) == frozen
	})
	for range 2 {
		if err := s.engine.Thaw(ctx, id); err != nil {
			t.Fatalf("Thaw: %v", err)
		}
	}
	if c := s.inspect(t, id); c.Status != engine.StatusRunning {
		t.Fatalf("a thawed container is %s", c.Status)
	}
	wait.Until(t, "the container prints after Thaw", func() bool { return s.logs(t, id, 1) != frozen })
}

func (s *suite) testFreezeRefuses(t *testing.T) {
	created := s.create(t, s.spec("sleep"))
	exited := s.start(t, s.spec("exit", "0"))
	s.waitStatus(t, exited, engine.StatusExited)
	for name, test := range map[string]struct {
		id   string
		want error
	}{
		"missing": {"enginetest-" + uuid.NewString(), engine.ErrNotFound},
		"created": {created, engine.ErrNotRunning},
		"exited":  {exited, engine.ErrNotRunning},
	} {
		t.Run(name, func(t *testing.T) {
			wantError(t, s.engine.Freeze(t.Context(), test.id), test.want)
			wantError(t, s.engine.Thaw(t.Context(), test.id), test.want)
		})
	}
}

func (s *suite) testStop(t *testing.T) {
	ctx := t.Context()
	id := s.start(t, s.spec("trap"))
	s.waitLog(t, id, "ready")
	if err := s.engine.Stop(ctx, id, wait.Patience()); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	if c := s.inspect(t, id); c.Status != engine.StatusExited || c.ExitCode != 7 {
		t.Errorf("the container is %s with exit code %d; want exited with the 7 of its signal handler", c.Status, c.ExitCode)
	}
	created := s.create(t, s.spec("sleep"))
	for name, id := range map[string]string{"exited": id, "created": created, "missing": "enginetest-" + uuid.NewString()} {
		if err := s.engine.Stop(ctx, id, time.Second); err != nil {
			t.Errorf("Stop of a container that is %s: %v", name, err)
		}
	}
}

func (s *suite) testStopKillsAfterGrace(t *testing.T) {
	id := s.start(t, s.spec("stubborn"))
	s.waitLog(t, id, "ready")
	began := time.Now()
	if err := s.engine.Stop(t.Context(), id, time.Second); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	if took := time.Since(began); took < time.Second {
		t.Errorf("killed after %s, before the grace of 1 s", took)
	}
	if c := s.inspect(t, id); c.Status != engine.StatusExited || c.ExitCode != 137 {
		t.Errorf("the container is %s with exit code %d; want exited with 137", c.Status, c.ExitCode)
	}
}

func (s *suite) testStopFrozen(t *testing.T) {
	id := s.start(t, s.spec("trap"))
	s.waitLog(t, id, "ready")
	if err := s.engine.Freeze(t.Context(), id); err != nil {
		t.Fatalf("Freeze: %v", err)
	}
	if err := s.engine.Stop(t.Context(), id, wait.Patience()); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	if c := s.inspect(t, id); c.Status != engine.StatusExited || c.ExitCode != 7 {
		t.Errorf("the container is %s with exit code %d; want exited with 7", c.Status, c.ExitCode)
	}
}

func (s *suite) testRemove(t *testing.T) {
	ctx := t.Context()
	id := s.start(t, s.spec("stubborn"))
	// Several at once: each returns when the container is gone.
	var group sync.WaitGroup
	for range 3 {
		group.Go(func() {
			if err := s.engine.Remove(ctx, id); err != nil {
				t.Errorf("Remove: %v", err)
			}
			_, err := s.engine.Inspect(ctx, id)
			wantError(t, err, engine.ErrNotFound)
		})
	}
	group.Wait()
	if err := s.engine.Remove(ctx, id); err != nil {
		t.Errorf("Remove of a container that is gone: %v", err)
	}
}

func (s *suite) testRemoveFrozen(t *testing.T) {
	id := s.start(t, s.spec("sleep"))
	if err := s.engine.Freeze(t.Context(), id); err != nil {
		t.Fatalf("Freeze: %v", err)
	}
	if err := s.engine.Remove(t.Context(), id); err != nil {
		t.Errorf("Remove: %v", err)
	}
	_, err := s.engine.Inspect(t.Context(), id)
	wantError(t, err, engine.ErrNotFound)
}

package box_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/box"
	"sandbox.internal/server/lifecycle"
)

// TestDaemonWithALogOfItsOwn: the daemon writes all of its log to a file, and only warnings to the
// log of the sandbox.
func TestDaemonWithALogOfItsOwn(t *testing.T) {
	for file, want := range map[string][]string{
		"":               {"/opt/sandbox/execd-init", "--log-level=4", "--", "sleep", "60"},
		"/tmp/execd.log": {"/opt/sandbox/execd-init", "--", "sleep", "60"},
	} {
		record := lifecycle.Record{
			Box:     "id",
			Sandbox: lifecycle.Sandbox{Entrypoint: []string{"sleep", "60"}},
			Spec:    lifecycle.Spec{Env: map[string]string{"EXECD_LOG_FILE": file}},
		}
		spec, err := box.ContainerSpec(box.Unopened(box.Options{}), record, "image", "directory")
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(spec.Entrypoint, want) {
			t.Errorf("with the file %q the command is %q", file, spec.Entrypoint)
		}
	}
}

// stopped is an engine that keeps what it was asked for last.
type stopped struct {
	engine.Engine
	grace time.Duration
}

func (e *stopped) Stop(_ context.Context, _ string, grace time.Duration) error {
	e.grace = grace
	return nil
}

// TestTimeToStop: the engine waits for what the first process of a sandbox waits for, and the
// entrypoint has no more time than it had.
func TestTimeToStop(t *testing.T) {
	for grace, want := range map[string]time.Duration{
		"": 11 * time.Second, "0s": 8 * time.Second, "500ms": 8500 * time.Millisecond, "30s": 38 * time.Second, "1h": 38 * time.Second,
	} {
		e := &stopped{}
		boxes := box.Unopened(box.Options{Engine: e, HostNetwork: true, EgressImage: "egress"})
		record := lifecycle.Record{Spec: lifecycle.Spec{Env: map[string]string{"EXECD_API_GRACE_SHUTDOWN": grace}}}
		boxes.Assign(&record)
		if err := boxes.Stop(t.Context(), record); err != nil || e.grace != want {
			t.Errorf("with %q for streams the engine has to wait %v (%v), want %v", grace, e.grace, err, want)
		}
		spec, err := box.ContainerSpec(boxes, record, "image", "directory")
		if err != nil || spec.Env["EXECD_STOP_GRACE"] != "2s" {
			t.Errorf("the first process has the variables %v (%v)", spec.Env, err)
		}
	}
	// The first process of a sandbox that an earlier service has made leaves the end of its
	// entrypoint to the engine.
	e := &stopped{}
	boxes := box.Unopened(box.Options{Engine: e})
	if err := boxes.Stop(t.Context(), lifecycle.Record{Box: "id"}); err != nil || e.grace != 2*time.Second {
		t.Errorf("the engine has to wait %v (%v), want 2s", e.grace, err)
	}
}

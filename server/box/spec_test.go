package box_test

import (
	"slices"
	"testing"

	"sandbox.internal/server/box"
	"sandbox.internal/server/lifecycle"
)

// TestDaemonWithALogOfItsOwn: the daemon writes all of its log to a file, and only warnings to the log of the sandbox.
func TestDaemonWithALogOfItsOwn(t *testing.T) {
	for file, want := range map[string][]string{
		"":               {"/opt/sandbox/execd-init", "--log-level=4", "--", "sleep", "60"},
		"/tmp/execd.log": {"/opt/sandbox/execd-init", "--", "sleep", "60"},
	} {
		record := lifecycle.Record{Box: "id", Spec: lifecycle.Spec{
			Entrypoint: []string{"sleep", "60"}, Env: map[string]string{"EXECD_LOG_FILE": file},
		}}
		spec, err := box.ContainerSpec(&box.Containers{}, record, "image", "folder")
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(spec.Entrypoint, want) {
			t.Errorf("with the file %q the command is %q", file, spec.Entrypoint)
		}
	}
}

package docker_test

import (
	"testing"

	"sandbox.internal/runtime/docker"
	"sandbox.internal/test/wait"
)

// TestElsewhere: an engine of another kernel, size or number of processors is on another machine.
func TestElsewhere(t *testing.T) {
	for name, c := range map[string]struct {
		field string
		value any
		want  bool
	}{
		"this machine":      {"Name", "here", false},
		"SELinux here":      {"SecurityOptions", []string{"name=selinux"}, false},
		"another kernel":    {"KernelVersion", "5.15.49-linuxkit", true},
		"more memory":       {"MemTotal", 1 << 50, true},
		"another processor": {"NCPU", 1000, true},
	} {
		f := &fakeEngine{info: ownMachine(t)}
		f.info[c.field] = c.value
		info, err := openFake(t, f, docker.Options{}).Info(wait.Context(t))
		if err != nil || info.Elsewhere != c.want {
			t.Errorf("%s: elsewhere is %v, %v; want %v", name, info.Elsewhere, err, c.want)
		}
	}
}

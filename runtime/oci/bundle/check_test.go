package bundle_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/bundle"
)

func TestCheck(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*bundle.Input)
		want   string // in the error; empty when there must be none
	}{
		"nothing":          {func(*bundle.Input) {}, ""},
		"image's command":  {func(in *bundle.Input) { in.Spec.Entrypoint, in.Image.Cmd = nil, []string{"x"} }, ""},
		"no command":       {func(in *bundle.Input) { in.Spec.Entrypoint = nil }, "entrypoint"},
		"zero byte":        {func(in *bundle.Input) { in.Spec.Entrypoint = []string{"a\x00"} }, "entrypoint"},
		"too many CPUs":    {func(in *bundle.Input) { in.Spec.Resources.NanoCPUs = int64(runtime.NumCPU()+1) * 1e9 }, "CPUs"},
		"all CPUs":         {func(in *bundle.Input) { in.Spec.Resources.NanoCPUs = int64(runtime.NumCPU()) * 1e9 }, ""},
		"tiny CPUs":        {func(in *bundle.Input) { in.Spec.Resources.NanoCPUs = 1 }, "CPUs"},
		"tiny memory":      {func(in *bundle.Input) { in.Spec.Resources.MemoryBytes = 1024 }, "memory"},
		"negative PIDs":    {func(in *bundle.Input) { in.Spec.Resources.PIDs = -1 }, "processes"},
		"GPUs":             {func(in *bundle.Input) { in.Spec.Resources.GPUs = 4 }, ""}, // refused at start
		"variable's name":  {func(in *bundle.Input) { in.Spec.Env = map[string]string{"A=B": ""} }, "environment"},
		"capability":       {func(in *bundle.Input) { in.Spec.Security.DropCapabilities = []string{"FLY"} }, "dropped capabilities"},
		"capability added": {func(in *bundle.Input) { in.Spec.Security.AddCapabilities = []string{"FLY"} }, "added capabilities"},
		"any case":         {func(in *bundle.Input) { in.Spec.Security.DropCapabilities = []string{"cap_chown", "ALL"} }, ""},
		"profile":          {func(in *bundle.Input) { in.Spec.Security.SeccompProfile = "{" }, "seccomp profile"},
		"profile's action": {func(in *bundle.Input) { in.Spec.Security.SeccompProfile = `{"defaultAction":"ALLOW"}` }, "seccomp profile"},
		"host's sysctl":    {func(in *bundle.Input) { in.Spec.Sysctls = map[string]string{"kernel.core_pattern": "|x"} }, "sysctls"},
		"sysctl's path":    {func(in *bundle.Input) { in.Spec.Sysctls = map[string]string{"net/../kernel/x": "1"} }, "sysctls"},
		"sysctl":           {func(in *bundle.Input) { in.Spec.Sysctls = map[string]string{"net.ipv4.tcp_syncookies": "0"} }, ""},
		"host network's sysctl": {func(in *bundle.Input) {
			in.Spec.Network, in.Spec.Sysctls = engine.NetworkHost, map[string]string{"net.ipv4.ip_forward": "1"}
		}, "sysctls"},
	} {
		t.Run(name, func(t *testing.T) {
			in := bundle.Input{Spec: engine.ContainerSpec{Entrypoint: []string{"/x"}}}
			test.change(&in)
			err := bundle.Check(in)
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (!errors.Is(err, engine.ErrInvalid) || !strings.Contains(err.Error(), test.want)):
				t.Errorf("got %v, want ErrInvalid about %s", err, test.want)
			}
		})
	}
}

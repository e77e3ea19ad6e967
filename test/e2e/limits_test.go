package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/api"
	"sandbox.internal/server/app"
	"sandbox.internal/server/config"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// Numbers of capabilities(7).
const (
	capChown      = 0
	capKill       = 5
	capNetAdmin   = 12
	capNetRaw     = 13
	capSysModule  = 16
	capSysPtrace  = 19
	capSysAdmin   = 21
	capSysTime    = 25
	capTTYConfig  = 26
	capMknod      = 27
	capAuditWrite = 29
)

// wantLimit reads a file of the sandbox's own control group, of version 1 or 2.
func wantLimit(t *testing.T, inside *conformance.Box, v1, v2, want string) {
	t.Helper()
	got := inside.Run(t,
		fmt.Sprintf("cat /sys/fs/cgroup/%s 2>/dev/null || cat /sys/fs/cgroup/%s", v1, v2))
	if strings.TrimSpace(got.Stdout) != want {
		t.Errorf("%s (or %s) is %q (%s), want %s", v1, v2, got.Stdout, got.Stderr, want)
	}
}

// status returns what the kernel says of a process in the sandbox.
func status(t *testing.T, inside *conformance.Box) map[string]string {
	t.Helper()
	fields := map[string]string{}
	for line := range strings.Lines(inside.Run(t, "cat /proc/self/status").Stdout) {
		name, value, _ := strings.Cut(line, ":")
		fields[name] = strings.TrimSpace(value)
	}
	return fields
}

func wantStatus(t *testing.T, inside *conformance.Box, field, want string) {
	t.Helper()
	if got := status(t, inside)[field]; got != want {
		t.Errorf("%s of a process in the sandbox is %q, want %q", field, got, want)
	}
}

func wantCapabilities(t *testing.T, inside *conformance.Box, kept, dropped []int) {
	t.Helper()
	text := status(t, inside)["CapBnd"]
	set, err := strconv.ParseUint(text, 16, 64)
	if err != nil {
		t.Fatalf("CapBnd %q: %v", text, err)
	}
	for _, number := range kept {
		if set&(1<<number) == 0 {
			t.Errorf("capability %d is missing in %s", number, text)
		}
	}
	for _, number := range dropped {
		if set&(1<<number) != 0 {
			t.Errorf("capability %d is in %s", number, text)
		}
	}
}

// TestDockerKeys checks each key of [docker] from inside a sandbox on the real engine.
func TestDockerKeys(t *testing.T) {
	t.Parallel()
	noMkdir := filepath.Join(t.TempDir(), "profile.json")
	profile := `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO"}]}`
	if err := os.WriteFile(noMkdir, []byte(profile), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		settings string
		check    func(*testing.T, *conformance.Box)
	}{
		"defaults": {"", func(t *testing.T, inside *conformance.Box) {
			wantCapabilities(t, inside, []int{capChown, capKill},
				[]int{capAuditWrite, capMknod, capNetAdmin, capNetRaw, capSysAdmin, capSysModule,
					capSysPtrace, capSysTime, capTTYConfig})
			wantStatus(t, inside, "NoNewPrivs", "1")
			wantStatus(t, inside, "Seccomp", "2") // the engine's default profile
			wantLimit(t, inside, "pids/pids.max", "pids.max", "512")
			wantLimit(t, inside, "cpu/cpu.cfs_quota_us", "cpu.max", "50000")
			wantLimit(t, inside, "memory/memory.limit_in_bytes", "memory.max", "134217728")
		}},
		"row lifecycle/configuration/docker.drop_capabilities: in another spelling": {`drop_capabilities = ["CAP_CHOWN", "net_raw"]`, func(t *testing.T, inside *conformance.Box) {
			wantCapabilities(t, inside, []int{capKill, capMknod, capAuditWrite},
				[]int{capChown, capNetRaw})
		}},
		"row lifecycle/configuration/docker.drop_capabilities: ALL": {`drop_capabilities = ["ALL"]`,
			func(t *testing.T, inside *conformance.Box) {
				wantStatus(t, inside, "CapBnd", "0000000000000000")
			}},
		"row lifecycle/configuration/docker.drop_capabilities: none": {`drop_capabilities = []`,
			func(t *testing.T, inside *conformance.Box) {
				// the engine's own default
				wantCapabilities(t, inside, []int{capChown, capNetRaw, capMknod},
					[]int{capSysAdmin, capNetAdmin})
			}},
		"row lifecycle/configuration/docker.no_new_privileges: false":    {`no_new_privileges = false`, func(t *testing.T, inside *conformance.Box) { wantStatus(t, inside, "NoNewPrivs", "0") }},
		"row lifecycle/configuration/docker.seccomp_profile: unconfined": {`seccomp_profile = "unconfined"`, func(t *testing.T, inside *conformance.Box) { wantStatus(t, inside, "Seccomp", "0") }},
		"row lifecycle/configuration/docker.seccomp_profile: a file": {fmt.Sprintf(
			"seccomp_profile = %q", noMkdir), func(t *testing.T, inside *conformance.Box) {
			wantStatus(t, inside, "Seccomp", "2")
			if got := inside.Run(t, "mkdir /tmp/refused"); got.Code == 0 ||
				!strings.Contains(got.Stderr, "Operation not permitted") {
				t.Errorf("a system call that the profile refuses: %+v", got)
			}
		}},
		"row lifecycle/configuration/docker.pids_limit: 60": {`pids_limit = 60`,
			func(t *testing.T,
				inside *conformance.Box) {
				wantLimit(t, inside, "pids/pids.max", "pids.max", "60")
			}},
		"row lifecycle/configuration/docker.pids_limit: none": {`pids_limit = 0`,
			func(t *testing.T,
				inside *conformance.Box) {
				wantLimit(t, inside, "pids/pids.max", "pids.max", "max")
			}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, conformance.Plan{Settings: "[docker]\n" + c.settings})
			r := conformance.Limited(idle(), "0.5", "128Mi")
			c.check(t, s.Enter(t, s.Running(t, r)))
		})
	}
}

// TestPIDsLimitEndsAForkBomb: the kernel refuses what is beyond docker.pids_limit.
func TestPIDsLimitEndsAForkBomb(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"bridge", "host"} {
		t.Run(network, func(t *testing.T) {
			t.Parallel()
			s := start(t,
				conformance.Plan{Settings: fmt.Sprintf("[docker]\npids_limit = 60\nnetwork_mode = %q",
					network)})
			// The bomb waits until the sandbox runs: a daemon at the limit could not even answer.
			id := s.Running(t,
				conformance.Request(busyboxImage, "sh", "-c",
					"until [ -e /tmp/now ]; do sleep 0.1; done; for i in $(seq 200); do sleep 1000 & done"))
			_, endpoint := s.sharedOrPublished(t, id)
			conformance.EnterAt(t, endpoint).RunFatal(t, "touch /tmp/now")
			// The shell says that it cannot fork; a Go program that is refused a thread says that.
			if got := s.Await(t, id, "Failed").Status.Message; !strings.Contains(got, "fork") &&
				!strings.Contains(got, "thread") {
				t.Errorf("the message is %q", got)
			}
		})
	}
}

// refusedStart starts a service that must not start, and returns why it did not.
func refusedStart(t *testing.T, settings string) error {
	t.Helper()
	return refused(t, "e2e-"+uuid.NewString()[:8], filepath.Join(t.TempDir(), "data"), settings)
}

// refused starts a service of that instance name and data_dir, which must not start, and returns
// why it did not.
func refused(t *testing.T, instance, directory, settings string) error {
	t.Helper()
	file := filepath.Join(t.TempDir(), "sandbox.toml")
	text := conformance.Configuration(instance, directory, runtimeSettings(), conformance.Plan{Settings: settings})
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(file, os.Getenv)
	if err != nil {
		return err
	}
	running, err := app.New(t.Context(), cfg, api.Version{}, zerolog.Nop())
	if err == nil {
		stopped, cancel := context.WithCancel(t.Context())
		cancel()
		_ = running.Run(stopped)
		t.Error("the service starts")
	}
	return err
}

// TestProfileThatTheEngineCannotHonour fails at the start, never silently.
func TestProfileThatTheEngineCannotHonour(t *testing.T) {
	t.Parallel()
	wants := func(t *testing.T, err error, words ...string) {
		t.Helper()
		if err == nil {
			t.Fatal("no error")
		}
		conformance.Contains(t, err.Error(), words...)
	}
	t.Run("seccomp", func(t *testing.T) {
		profile := filepath.Join(t.TempDir(), "profile.json")
		if err := os.WriteFile(profile, []byte(`{"defaultAction":"SCMP_ACT_NONSENSE"}`),
			0o600); err != nil {
			t.Fatal(err)
		}
		wants(t, refusedStart(t, fmt.Sprintf("[docker]\nseccomp_profile = %q", profile)),
			"docker.seccomp_profile", "NONSENSE")
	})
	t.Run("row lifecycle/configuration/docker.apparmor_profile: not there", func(t *testing.T) {
		// Where the engine has AppArmor the profile's name is what is wrong; where it has not, any
		// name is.
		wants(t, refusedStart(t, "[docker]\napparmor_profile = \"no-such-profile\""),
			"docker.apparmor_profile")
	})
	t.Run("row lifecycle/configuration/ingress.mode: gateway", func(t *testing.T) {
		wants(t, refusedStart(t, "[ingress]\nmode = \"gateway\""), "ingress.mode", "direct")
	})
}

// TestProofOfLimits: limits work here, the log says so, and nothing of the proof is left.
func TestProofOfLimits(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{Program: true})
	lines := s.Log.With("limits tried on a throwaway container")
	if len(lines) != 1 {
		t.Fatalf("the log has %q", lines)
	}
	var line struct {
		Memory, CPU, PIDs bool
		Took              float64 `json:"took_ms"`
	}
	if err := json.Unmarshal([]byte(lines[0]), &line); err != nil || !line.Memory || !line.CPU ||
		!line.PIDs || line.Took == 0 {
		t.Errorf("the log says %s (%v)", lines[0], err)
	}
	proof := map[string]string{"sandbox.internal/instance": s.Instance,
		"sandbox.internal/proof": "limits"}
	left := func() []engine.Container {
		list, err := s.engine.List(t.Context(), proof)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	if list := left(); len(list) > 0 {
		t.Errorf("after the start there is %v", list)
	}

	// A service that is killed while it proves leaves a container, which the next one removes.
	s.Halt(t)
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
	defer cancel()
	begun := make(chan struct{})
	go func() {
		_ = s.engine.Watch(ctx, proof, func() { close(begun) }, func(event engine.Event) {
			if event.Type == engine.EventStarted {
				cancel()
			}
		})
	}()
	wait.For(t, "the begin of the watch", begun)
	s.bootUntil(ctx, t)
	if ctx.Err() != context.Canceled {
		t.Fatal("the service that starts proves nothing")
	}
	s.Boot(t)
	if list := left(); len(list) > 0 {
		t.Errorf("after a kill in the middle of the proof and another start there is %v", list)
	}
}

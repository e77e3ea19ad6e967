package host_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/box"
	"sandbox.internal/server/lifecycle"
)

const proofName = "sandbox-proof-" + instance

// proving is an engine on which the container that proves the limits has run to its end as soon as
// it is started. Real limits are proven in test/e2e.
type proving struct {
	*memoryEngine
	info engine.Info

	mu      sync.Mutex
	said    string // what the container writes
	oom     bool
	refused error // what Start returns
	calls   []string
	spec    engine.ContainerSpec
}

const allBite = `{"cpu_cores":0.5,"no_new_privileges":true,"seccomp":2,"apparmor":"docker-default (enforce)"}
{"processes_refused":true}
{"memory_killed":true}
`

func newProving(e *memoryEngine) *proving {
	return &proving{memoryEngine: e, said: allBite, info: engine.Info{Name: "memory", CPUs: 4, MemoryBytes: 8 << 30, AppArmor: true, Seccomp: true}}
}

func (p *proving) called(call string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, call)
}

func (p *proving) Info(ctx context.Context) (engine.Info, error) {
	real, err := p.memoryEngine.Info(ctx)
	info := p.info
	info.OwnPaths = real.OwnPaths
	return info, err
}

func (p *proving) Create(ctx context.Context, spec engine.ContainerSpec) (string, error) {
	if spec.Name != proofName {
		return p.memoryEngine.Create(ctx, spec)
	}
	p.spec = spec
	p.called("Create")
	return "id-of-proof", nil
}

func (p *proving) Start(ctx context.Context, id string) error {
	if id != proofName {
		return p.memoryEngine.Start(ctx, id)
	}
	p.called("Start")
	return p.refused
}

func (p *proving) Inspect(ctx context.Context, id string) (engine.Container, error) {
	if id != proofName {
		return p.memoryEngine.Inspect(ctx, id)
	}
	return engine.Container{ID: "id-of-proof", Name: proofName, Status: engine.StatusExited, OOMKilled: p.oom}, nil
}

func (p *proving) Logs(ctx context.Context, id string, tail int) (string, error) {
	if id != proofName {
		return p.memoryEngine.Logs(ctx, id, tail)
	}
	return p.said, nil
}

func (p *proving) Remove(ctx context.Context, id string) error {
	if id != proofName {
		return p.memoryEngine.Remove(ctx, id)
	}
	p.called("Remove")
	return nil
}

func TestProofOfLimits(t *testing.T) {
	const profile = ` {"defaultAction":"SCMP_ACT_ALLOW"}`
	for name, c := range map[string]struct {
		said    string // one of the lines of allBite, replaced
		options func(*box.Options)
		engine  func(*proving)
		words   []string // of the refusal; none when the host starts
		warning string
	}{
		"every limit works": {},
		"memory":            {said: `{"memory_killed":false}`, words: []string{"memory (", "sandbox.allow_unenforced_limits"}},
		"processes":         {said: `{"processes_refused":false}`, words: []string{"pids (", "sandbox.allow_unenforced_limits"}},
		"no quota":          {said: `{"cpu_cores":0,"no_new_privileges":true,"seccomp":2,"apparmor":""}`, words: []string{"cpu (", "a quota of 0"}},
		"another quota":     {said: `{"cpu_cores":2,"no_new_privileges":true,"seccomp":2,"apparmor":""}`, words: []string{"cpu (", "a quota of 2"}},
		"processes without a limit": {
			said:    `{"processes_refused":false}`,
			options: func(o *box.Options) { o.PIDsLimit = 0 },
		},
		"allowed": {
			said:    `{"memory_killed":false}`,
			options: func(o *box.Options) { o.AllowUnenforcedLimits = true },
			warning: "limits without effect on this container engine: memory (",
		},
		"the whole container is killed": {
			said:   `{"memory_killed":null}`,
			engine: func(p *proving) { p.oom = true },
		},
		"it ends early":     {said: `{"memory_killed":null}`, words: []string{"before it had tried every limit", "processes_refused"}},
		"an execd too old":  {engine: func(p *proving) { p.said = "execd: unexpected argument \"probe\"\n" }, words: []string{"runtime.execd_image", "unexpected argument"}},
		"the start refused": {engine: func(p *proving) { p.refused = fmt.Errorf("%w: no such profile", engine.ErrInvalid) }, words: []string{"no such profile", "sandbox.seccomp_profile"}},
		"the start refused, allowed": {
			options: func(o *box.Options) { o.AllowUnenforcedLimits = true },
			engine:  func(p *proving) { p.refused = fmt.Errorf("%w: no CPU CFS scheduler", engine.ErrInvalid) },
			warning: "refuses the container that tries limits",
		},
		"privileges": {
			said:    `{"cpu_cores":0.5,"no_new_privileges":false,"seccomp":2,"apparmor":""}`,
			options: func(o *box.Options) { o.Security.NoNewPrivileges, o.AllowUnenforcedLimits = true, true },
			words:   []string{"sandbox.no_new_privileges"},
		},
		"seccomp honoured": {options: func(o *box.Options) { o.Security.SeccompProfile = profile }},
		"seccomp ignored": {
			said:    `{"cpu_cores":0.5,"no_new_privileges":true,"seccomp":0,"apparmor":""}`,
			options: func(o *box.Options) { o.Security.SeccompProfile = profile },
			words:   []string{"sandbox.seccomp_profile", "mode 0"},
		},
		"seccomp off": {
			said:    `{"cpu_cores":0.5,"no_new_privileges":true,"seccomp":0,"apparmor":""}`,
			options: func(o *box.Options) { o.Security.SeccompProfile = "unconfined" },
			engine:  func(p *proving) { p.info.Seccomp = false },
		},
		"no seccomp": {
			options: func(o *box.Options) { o.Security.SeccompProfile = profile },
			engine:  func(p *proving) { p.info.Seccomp = false },
			words:   []string{"sandbox.seccomp_profile", "no seccomp"},
		},
		"AppArmor honoured": {options: func(o *box.Options) { o.Security.AppArmorProfile = "docker-default" }},
		"another AppArmor profile": {
			options: func(o *box.Options) { o.Security.AppArmorProfile = "strict" },
			words:   []string{"sandbox.apparmor_profile", `"strict"`, "docker-default"},
		},
		"no AppArmor": {
			options: func(o *box.Options) { o.Security.AppArmorProfile = "docker-default" },
			engine:  func(p *proving) { p.info.AppArmor = false },
			words:   []string{"sandbox.apparmor_profile", "no AppArmor", "leave it empty"},
		},
		"AppArmor off where there is none": {
			said:    `{"cpu_cores":0.5,"no_new_privileges":true,"seccomp":2,"apparmor":""}`,
			options: func(o *box.Options) { o.Security.AppArmorProfile = "unconfined" },
			engine:  func(p *proving) { p.info.AppArmor = false },
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			proof := newProving(m.engine)
			proof.said = replaced(t, c.said)
			if c.engine != nil {
				c.engine(proof)
			}
			var log bytes.Buffer
			m.box.Engine, m.box.Logger, m.box.PIDsLimit = proof, zerolog.New(&log), 100
			if c.options != nil {
				c.options(&m.box)
			}
			started, err := m.open()
			if err == nil {
				started.Close() // before the log is read
			}
			if (err != nil) != (len(c.words) > 0) {
				t.Fatalf("Start: %v", err)
			}
			for _, word := range c.words {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%q does not say %q", err, word)
				}
			}
			if !strings.Contains(log.String(), c.warning) {
				t.Errorf("%q is not in the log:\n%s", c.warning, log.String())
			}
			if len(proof.calls) > 0 && !slices.Equal(proof.calls, []string{"Remove", "Create", "Start", "Remove"}) {
				t.Errorf("the container was used like this: %q", proof.calls)
			}
		})
	}
}

// replaced returns allBite with the line that has the same first field replaced.
func replaced(t *testing.T, line string) string {
	t.Helper()
	if line == "" {
		return allBite
	}
	field, _, _ := strings.Cut(line, ":")
	lines := strings.Split(allBite, "\n")
	at := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, field+":") })
	if at < 0 {
		t.Fatalf("no line begins with %s", field)
	}
	lines[at] = line
	return strings.Join(lines, "\n")
}

// TestProofContainer: what proves the limits has limits, the configured profiles and no network,
// and can be found by its labels.
func TestProofContainer(t *testing.T) {
	m := newMachine(t)
	proof := newProving(m.engine)
	var log bytes.Buffer
	m.box.Engine, m.box.Logger = proof, zerolog.New(&log)
	m.box.Security = engine.Security{DropCapabilities: []string{"ALL"}, NoNewPrivileges: true, AppArmorProfile: "docker-default"}
	m.start().host.Close()
	spec := proof.spec
	if r := spec.Resources; r.NanoCPUs == 0 || r.MemoryBytes == 0 || r.PIDs == 0 || spec.Network != engine.NetworkNone || len(spec.Mounts) > 0 {
		t.Errorf("the container is %+v", spec)
	}
	if s := spec.Security; !s.NoNewPrivileges || s.AppArmorProfile != "docker-default" || !slices.Equal(s.DropCapabilities, []string{"ALL"}) {
		t.Errorf("the profiles of the container are %+v", s)
	}
	if spec.Labels[lifecycle.LabelPrefix+"instance"] != instance || spec.Labels[lifecycle.LabelPrefix+"proof"] == "" {
		t.Errorf("the labels of the container are %v", spec.Labels)
	}
	var line struct {
		Message           string
		Memory, CPU, PIDs bool
	}
	for text := range strings.Lines(log.String()) {
		if strings.Contains(text, "throwaway") {
			if err := json.Unmarshal([]byte(text), &line); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !line.Memory || !line.CPU || !line.PIDs {
		t.Errorf("the log says %+v:\n%s", line, log.String())
	}
}

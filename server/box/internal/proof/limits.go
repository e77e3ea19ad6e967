// Package proof tries on an engine what the service relies on: limits, profiles and runtimes.
package proof

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/clock"
	"sandbox.internal/server/lifecycle"
)

const (
	// labelProof marks the container that tries the limits or a runtime class. It carries the
	// instance's label as well, so that the sweep removes one that a killed service left behind.
	labelProof = lifecycle.LabelPrefix + "proof"

	// The limits of the container, and what is tried against them. They are small, so that this
	// takes a fraction of a second.
	probeCPUs       = 0.5
	probeMemory     = 64 << 20
	probeAllocation = 2 * probeMemory
	probePIDs       = 32
	probeProcesses  = 2 * probePIDs

	// probeTimeout bounds the container's life; a quiet machine needs a fraction of a second.
	probeTimeout = 2 * time.Minute
)

// seccompFilter is the kernel's number of the mode in which a profile filters system calls.
const seccompFilter = 2

// probeResult is what "execd probe" writes, one or more fields a line. A field that it did not get
// to is nil.
type probeResult struct {
	CPUCores         *float64 `json:"cpu_cores"`
	ProcessesRefused *bool    `json:"processes_refused"`
	MemoryKilled     *bool    `json:"memory_killed"`
	NoNewPrivileges  *bool    `json:"no_new_privileges"`
	Seccomp          *int     `json:"seccomp"`
	AppArmor         *string  `json:"apparmor"`
	// OpenSockets are families of sockets that lead into the kernel and that no profile refuses;
	// nil from an execd that does not try them.
	OpenSockets []string `json:"open_sockets"`
}

// Proof is what has to hold of an engine before the service starts.
type Proof struct {
	Engine   engine.Engine
	Info     engine.Info
	Log      zerolog.Logger
	Security engine.Security
	Instance string
	Owned    map[string]string // the labels of the service's containers
	// Key returns the name of a setting of [sandbox] for messages, as the operator wrote it.
	Key             func(name string) string
	AllowUnenforced bool
	PidsLimit       int64
	ExecdImage      string
	ImageID         string // of ExecdImage
}

// labels are those of a container that proves something.
func (p Proof) labels(what string) map[string]string {
	labels := maps.Clone(p.Owned)
	labels[labelProof] = what
	return labels
}

// Limits runs a container with limits and the configured profiles, in which a process tries to
// exceed them. It returns an error when a profile is not honoured, and when a limit has no effect
// unless that is allowed.
func (p Proof) Limits(ctx context.Context) error {
	if err := p.profilesKnown(); err != nil {
		return err
	}
	if p.Info.OwnKernel {
		return p.checkMemoryLimit(ctx)
	}
	began := time.Now()
	seen, err := p.probeLimits(ctx)
	if errors.Is(err, engine.ErrInvalid) && p.AllowUnenforced {
		// Nothing is silent: a sandbox with the limit or the profile that the engine refuses fails
		// with its words.
		p.Log.Warn().Err(err).Msg("the container engine refuses the container that tries limits; " + p.Key("allow_unenforced_limits") + " lets the service start")
		return nil
	}
	if errors.Is(err, engine.ErrInvalid) {
		err = fmt.Errorf("%w (a profile that is not there or not valid? see %s, %s)", err, p.Key("seccomp_profile"), p.Key("apparmor_profile"))
	}
	if err != nil {
		return fmt.Errorf("prove the limits in a throwaway container of runtime.execd_image %q: %w", p.ExecdImage, err)
	}
	cpu, pids, memory := math.Abs(*seen.CPUCores-probeCPUs) < 0.01, *seen.ProcessesRefused, *seen.MemoryKilled
	p.Log.Info().Bool("memory", memory).Bool("cpu", cpu).Bool("pids", pids).Bool("no_new_privileges", *seen.NoNewPrivileges).
		Int("seccomp_mode", *seen.Seccomp).Strs("open_sockets", seen.OpenSockets).Str("apparmor_profile", *seen.AppArmor).Dur("took_ms", time.Since(began)).
		Msg("limits tried on a throwaway container")
	if err := p.profilesHonoured(seen); err != nil {
		return err
	}
	p.warnOfSockets(seen.OpenSockets)
	var without []string
	if !memory {
		without = append(without, fmt.Sprintf("memory (a process used %d MiB where %d are allowed, and was not killed)", probeAllocation>>20, probeMemory>>20))
	}
	if !cpu {
		without = append(without, fmt.Sprintf("cpu (%g cores are allowed, and the process sees a quota of %g, where 0 is none)", probeCPUs, *seen.CPUCores))
	}
	if !pids && p.PidsLimit > 0 {
		without = append(without, fmt.Sprintf("pids (%d processes were started where %d are allowed)", probeProcesses, probePIDs))
	}
	return p.withoutEffect(without)
}

// checkMemoryLimit is Limits for containers with a kernel of their own. That shows its
// processes nothing of what limits it, and ends when it is refused a thread: the limit of memory
// alone can be tried.
func (p Proof) checkMemoryLimit(ctx context.Context) error {
	if profile := p.Security.SeccompProfile; profile != "" && profile != unconfined {
		return errors.New(p.Key("seccomp_profile") + ": the containers of this engine have a kernel of their own, which filters no system calls by a profile: leave it empty")
	}
	began := time.Now()
	ended, log, err := p.runProbe(ctx, engine.Resources{NanoCPUs: probeCPUs * 1e9, MemoryBytes: probeMemory}, "eat", strconv.Itoa(probeAllocation))
	if err == nil && ended.ExitCode != 0 && ended.ExitCode != 137 && !ended.OOMKilled {
		err = fmt.Errorf("container ended with exit code %d: %s", ended.ExitCode, strings.TrimSpace(log))
	}
	if err != nil {
		return fmt.Errorf("prove the limit of memory in a throwaway container of runtime.execd_image %q: %w", p.ExecdImage, err)
	}
	memory := ended.ExitCode != 0
	p.Log.Info().Bool("memory", memory).Dur("took_ms", time.Since(began)).
		Msg("limit tried on a throwaway container; other limits do not show in a container with a kernel of its own")
	if memory {
		return nil
	}
	return p.withoutEffect([]string{fmt.Sprintf("memory (a process used %d MiB where %d are allowed, and was not killed)", probeAllocation>>20, probeMemory>>20)})
}

// withoutEffect returns an error that names the limits, unless there are none or that is allowed.
func (p Proof) withoutEffect(without []string) error {
	if len(without) == 0 {
		return nil
	}
	text := "limits without effect on this container engine: " + strings.Join(without, "; ")
	if p.AllowUnenforced {
		p.Log.Warn().Msg(text + "; " + p.Key("allow_unenforced_limits") + " lets the service start")
		return nil
	}
	return errors.New(text + "; correct the engine's control groups, or set " + p.Key("allow_unenforced_limits") + " = true to start without these limits")
}

// unconfined is the name that stands for no profile, of AppArmor and of seccomp.
const unconfined = "unconfined"

// profilesKnown refuses profiles that the engine would leave out without a word.
func (p Proof) profilesKnown() error {
	if profile := p.Security.AppArmorProfile; profile != "" && profile != unconfined && !p.Info.AppArmor {
		return fmt.Errorf("%s: the container engine's host has no AppArmor, so the profile %q would have no effect: leave it empty", p.Key("apparmor_profile"), profile)
	}
	if profile := p.Security.SeccompProfile; profile != "" && profile != unconfined && !p.Info.Seccomp {
		return errors.New(p.Key("seccomp_profile") + ": the container engine has no seccomp, so the profile would have no effect: leave it empty")
	}
	return nil
}

// profilesHonoured compares the configured profiles with what the process saw.
func (p Proof) profilesHonoured(seen probeResult) error {
	if p.Security.NoNewPrivileges && !*seen.NoNewPrivileges {
		return errors.New(p.Key("no_new_privileges") + ": is true, but a process in a container can get new privileges on this engine")
	}
	if profile := p.Security.SeccompProfile; profile != "" && profile != unconfined && *seen.Seccomp != seccompFilter {
		return fmt.Errorf("%s: no profile filters a process in a container on this engine (mode %d)", p.Key("seccomp_profile"), *seen.Seccomp)
	}
	name, _, _ := strings.Cut(*seen.AppArmor, " (") // "docker-default (enforce)"
	if want := p.Security.AppArmorProfile; p.Info.AppArmor && want != "" && name != want {
		return fmt.Errorf("%s: is %q, but a process in a container is under %q on this engine", p.Key("apparmor_profile"), want, *seen.AppArmor)
	}
	return nil
}

// warnOfSockets reports families of sockets that the kernel opens for sandboxes although none needs
// them.
func (p Proof) warnOfSockets(open []string) {
	if len(open) == 0 {
		return
	}
	remedy := p.Key("seccomp_profile") + " permits them: unset it, or have the profile refuse them"
	if p.Security.SeccompProfile == "" {
		remedy = "the container engine's own profile permits them: set " + p.Key("seccomp_profile") + " to one that refuses them, or unload and block their kernel modules"
	}
	p.Log.Warn().Strs("families", open).Msg("a process in a sandbox can open sockets by which others have got into the host's kernel; " + remedy)
}

// probeLimits returns what a container with every limit has seen.
func (p Proof) probeLimits(ctx context.Context) (probeResult, error) {
	resources := engine.Resources{NanoCPUs: probeCPUs * 1e9, MemoryBytes: probeMemory, PIDs: probePIDs}
	ended, log, err := p.runProbe(ctx, resources, strconv.Itoa(probeAllocation), strconv.Itoa(probeProcesses))
	if err != nil {
		return probeResult{}, err
	}
	return parseProbe(ended, log)
}

// runProbe runs "execd probe" in a container to its end, and removes that. The image is here: execd
// was made available from it.
func (p Proof) runProbe(ctx context.Context, resources engine.Resources, words ...string) (ended engine.Container, log string, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	spec := engine.ContainerSpec{
		Name:       "sandbox-proof-" + p.Instance,
		ImageID:    p.ImageID,
		Labels:     p.labels("limits"),
		Entrypoint: append([]string{filepath.Join(lifecycle.DaemonPath, "execd"), "probe"}, words...),
		Network:    engine.NetworkNone,
		Resources:  resources,
		Security:   p.Security,
	}
	if err := p.Engine.Remove(ctx, spec.Name); err != nil { // a service that was killed may have left it
		return ended, "", err
	}
	defer func() { err = errors.Join(err, p.Engine.Remove(context.WithoutCancel(ctx), spec.Name)) }()
	if _, err := p.Engine.Create(ctx, spec); err != nil {
		return ended, "", err
	}
	if err := p.Engine.Start(ctx, spec.Name); err != nil {
		return ended, "", err
	}
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		ended, err = p.Engine.Inspect(ctx, spec.Name)
		switch {
		case err != nil:
			return ended, "", err
		case ended.Status == engine.StatusExited:
			log, err = p.Engine.Logs(ctx, spec.Name, 100)
			return ended, log, err
		case !clock.Sleep(ctx, pause):
			return ended, "", fmt.Errorf("container did not end within %v", probeTimeout)
		}
	}
}

// parseProbe reads what the container wrote.
func parseProbe(container engine.Container, log string) (probeResult, error) {
	var seen probeResult
	for line := range strings.Lines(log) {
		_ = json.Unmarshal([]byte(line), &seen) // what is no JSON is an error message, shown below
	}
	if seen.MemoryKilled == nil && container.OOMKilled {
		// The kernel ended the whole container and not only the process that used the memory.
		killed := true
		seen.MemoryKilled = &killed
	}
	for _, missing := range []bool{seen.CPUCores == nil, seen.ProcessesRefused == nil, seen.MemoryKilled == nil,
		seen.NoNewPrivileges == nil, seen.Seccomp == nil, seen.AppArmor == nil} {
		if missing {
			return probeResult{}, fmt.Errorf("container ended with exit code %d before it had tried every limit: %s", container.ExitCode, strings.TrimSpace(log))
		}
	}
	return seen, nil
}

// Package enginetest is the suite that every [engine.Engine] must pass, on real containers.
//
// It builds a small image around a static program of its own and serves it from a registry inside
// the test, so it needs neither a network nor anything but the engine and the Go toolchain.
package enginetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/test/wait"
)

const (
	// runLabel is on everything that a run of the suite makes.
	runLabel = "sandbox.internal/enginetest"
)

// Janitor does for the suite what an Engine cannot: find and remove what tests leave in the engine.
type Janitor interface {
	// Volumes returns the names of the volumes that carry the label.
	Volumes(ctx context.Context, label, value string) ([]string, error)
	// RemoveVolume removes a volume. Removing a missing volume succeeds.
	RemoveVolume(ctx context.Context, name string) error
	// RemoveImage removes an image, by reference. Removing a missing image succeeds.
	RemoveImage(ctx context.Context, ref string) error
}

// Trait is how the containers of an engine differ from others, where the contract permits that.
type Trait string

// OwnKernel: containers have a kernel of their own, such as gVisor's. It filters no system calls by
// a profile and has no loopback interface without a network; it is not in the host's network; its
// own threads count as processes, so it ends at their limit.
const OwnKernel Trait = "own kernel"

// KeptAsLayers: a snapshot is a layer of an image, as Docker writes it. It has times to the second,
// zeros in the place of holes, and neither extended attributes of users nor the mode of the root
// directory; its files are not counted. A container that was rolled back begins a new log.
const KeptAsLayers Trait = "kept as layers"

// Open returns the engine under test, which must reach registries on 127.0.0.1 of this machine
// without TLS. All containers of the suite have the labels.
type Open func(t *testing.T, labels map[string]string) (engine.Engine, Janitor)

// Run runs the suite, and closes the engine.
func Run(t *testing.T, open Open, traits ...Trait) {
	s := newSuite(t, open)
	s.ownKernel, s.keptAsLayers = slices.Contains(traits, OwnKernel), slices.Contains(traits, KeptAsLayers)
	// Everything at once: the contract allows it, so the suite does it.
	t.Run("contract", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T){
			"Info":                        s.testInfo,
			"Create":                      s.testCreate,
			"CreateRefuses":               s.testCreateRefuses,
			"Start":                       s.testStart,
			"ExitCode":                    s.testExitCode,
			"StartRefuses":                s.testStartRefuses,
			"Freeze":                      s.testFreeze,
			"FreezeRefuses":               s.testFreezeRefuses,
			"Stop":                        s.testStop,
			"StopKillsAfterGrace":         s.testStopKillsAfterGrace,
			"StopFrozen":                  s.testStopFrozen,
			"Remove":                      s.testRemove,
			"RemoveFrozen":                s.testRemoveFrozen,
			"Inspect":                     s.testInspect,
			"List":                        s.testList,
			"Logs":                        s.testLogs,
			"OpenLog":                     s.testOpenLog,
			"OpenLogFollows":              s.testOpenLogFollows,
			"Environment":                 s.testEnvironment,
			"Publish":                     s.testPublish,
			"PublishSamePort":             s.testPublishSamePort,
			"NetworkHost":                 s.testNetworkHost,
			"NetworkNone":                 s.testNetworkNone,
			"MemoryLimit":                 s.testMemoryLimit,
			"NetlinkMemory":               s.testNetlinkMemory,
			"PIDsLimit":                   s.testPIDsLimit,
			"Security":                    s.testSecurity,
			"Sockets":                     s.testSockets,
			"Mounts":                      s.testMounts,
			"MountRefuses":                s.testMountRefuses,
			"SubPath":                     s.testSubPath,
			"FreshVolume":                 s.testFreshVolume,
			"MountOnLink":                 s.testMountOnLink,
			"Watch":                       s.testWatch,
			"EnsureDirectory":             s.testEnsureDirectory,
			"MakeVolume":                  s.testMakeVolume,
			"Snapshot":                    s.testSnapshot,
			"SnapshotDiff":                s.testSnapshotDiff,
			"SnapshotExport":              s.testSnapshotExport,
			"SnapshotWhileWriting":        s.testSnapshotWhileWriting,
			"SnapshotShares":              s.testSnapshotShares,
			"SnapshotRefuses":             s.testSnapshotRefuses,
			"SnapshotUnseen":              s.testSnapshotUnseen,
			"Rollback":                    s.testRollback,
			"Suspend":                     s.testSuspend,
			"Hibernate":                   s.testHibernate,
			"Traffic":                     s.testTraffic,
			"TrafficEnds":                 s.testTrafficEnds,
			"TrafficRefuses":              s.testTrafficRefuses,
			"EnsureDirectoryHeals":        s.testEnsureDirectoryHeals,
			"EnsureDirectoryTogether":     s.testEnsureDirectoryTogether,
			"EnsureDirectoryRefuses":      s.testEnsureDirectoryRefuses,
			"EnsureImage":                 s.testEnsureImage,
			"EnsureImagePrivate":          s.testEnsureImagePrivate,
			"EnsureImageRefuses":          s.testEnsureImageRefuses,
			"EnsureImageTogether":         s.testEnsureImageTogether,
			"EnsureImageLeaver":           s.testEnsureImageLeaver,
			"EnsureImageAllLeave":         s.testEnsureImageAllLeave,
			"EnsureImageOthersCredential": s.testEnsureImageOthersCredential,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t)
			})
		}
	})
	s.checkLeaks(t)
}

// suite is what the tests of one run share.
type suite struct {
	engine   engine.Engine
	janitor  Janitor
	run      string // value of runLabel
	registry *testRegistry
	imageRef string
	imageID  string
	// The traits OwnKernel and KeptAsLayers.
	ownKernel, keptAsLayers bool
}

func newSuite(t *testing.T, open Open) *suite {
	t.Helper()
	s := &suite{run: uuid.NewString(), registry: newRegistry(t, buildProbe(t))}
	s.engine, s.janitor = open(t, s.labels())
	t.Cleanup(func() {
		if err := s.engine.Close(); err != nil {
			t.Errorf("close the engine: %v", err)
		}
	})
	s.imageRef = s.registry.push(t, "probe:1")
	s.imageID = s.ensureImage(t, s.imageRef, nil)
	return s
}

func (s *suite) labels() map[string]string { return map[string]string{runLabel: s.run} }

// ensureImage pulls an image and has it removed after the test.
func (s *suite) ensureImage(t *testing.T, ref string, auth *engine.RegistryAuth) string {
	t.Helper()
	s.removeImageAfter(t, ref)
	id, err := s.engine.EnsureImage(t.Context(), ref, auth, nil)
	if err != nil {
		t.Fatalf("EnsureImage(%s): %v", ref, err)
	}
	return id
}

func (s *suite) removeImageAfter(t *testing.T, ref string) {
	t.Helper()
	t.Cleanup(func() {
		if err := s.janitor.RemoveImage(context.WithoutCancel(t.Context()), ref); err != nil {
			t.Errorf("remove image %s: %v", ref, err)
		}
	})
}

// volume returns a name that no other test uses; the volume is removed after the test.
func (s *suite) volume(t *testing.T) string {
	t.Helper()
	name := "enginetest-" + uuid.NewString()
	t.Cleanup(func() {
		if err := s.janitor.RemoveVolume(context.WithoutCancel(t.Context()), name); err != nil {
			t.Errorf("remove volume %s: %v", name, err)
		}
	})
	return name
}

// spec is a container of the probe image that runs the words.
func (s *suite) spec(words ...string) engine.ContainerSpec {
	return engine.ContainerSpec{
		Name:       "enginetest-" + uuid.NewString(),
		ImageID:    s.imageID,
		Labels:     s.labels(),
		Entrypoint: append([]string{probePath}, words...),
	}
}

// create makes a container and has it removed after the test.
func (s *suite) create(t *testing.T, spec engine.ContainerSpec) string {
	t.Helper()
	id, err := s.engine.Create(t.Context(), spec)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	t.Cleanup(func() {
		if err := s.engine.Remove(context.WithoutCancel(t.Context()), spec.Name); err != nil { // its id may have changed
			t.Errorf("remove container %s: %v", spec.Name, err)
		}
	})
	return id
}

// start makes a container and starts it.
func (s *suite) start(t *testing.T, spec engine.ContainerSpec) string {
	t.Helper()
	id := s.create(t, spec)
	if err := s.engine.Start(t.Context(), id); err != nil {
		t.Fatalf("Start: %v", err)
	}
	return id
}

// output runs a container to its end, which must be exit code 0, and returns what it wrote.
func (s *suite) output(t *testing.T, spec engine.ContainerSpec) string {
	t.Helper()
	id := s.start(t, spec)
	c := s.waitStatus(t, id, engine.StatusExited)
	log := s.logs(t, id, 1000)
	if c.ExitCode != 0 {
		t.Fatalf("%v ended with %d: %s", spec.Entrypoint, c.ExitCode, log)
	}
	return log
}

func (s *suite) inspect(t *testing.T, id string) engine.Container {
	t.Helper()
	c, err := s.engine.Inspect(t.Context(), id)
	if err != nil {
		t.Fatalf("Inspect: %v", err)
	}
	return c
}

func (s *suite) logs(t *testing.T, id string, tail int) string {
	t.Helper()
	log, err := s.engine.Logs(t.Context(), id, tail)
	if err != nil {
		t.Fatalf("Logs: %v", err)
	}
	return log
}

func (s *suite) waitStatus(t *testing.T, id string, want engine.Status) engine.Container {
	t.Helper()
	var c engine.Container
	wait.Until(t, fmt.Sprintf("the status is %s", want), func() bool {
		c = s.inspect(t, id)
		return c.Status == want
	})
	return c
}

func (s *suite) waitLog(t *testing.T, id, want string) {
	t.Helper()
	wait.Until(t, fmt.Sprintf("the log has %q", want), func() bool {
		return strings.Contains(s.logs(t, id, 1000), want)
	})
}

// checkLeaks runs when every test has cleaned up: what then still carries the run's label was left
// behind by the engine.
func (s *suite) checkLeaks(t *testing.T) {
	containers, err := s.engine.List(t.Context(), s.labels())
	if err != nil {
		t.Fatalf("List: %v", err)
	}
	for _, c := range containers {
		t.Errorf("container %s (%s, %v) was left behind", c.Name, c.Status, c.Labels)
		if err := s.engine.Remove(t.Context(), c.ID); err != nil {
			t.Error(err)
		}
	}
	if snapshots, ok := s.engine.(engine.Snapshots); ok && snapshots.CheckAbility(engine.AbilitySnapshots) == nil {
		left, err := snapshots.ListSnapshots(t.Context()) // which may also remove what removed ones have left
		if err != nil {
			t.Fatalf("ListSnapshots: %v", err)
		}
		for _, one := range left {
			if one.Labels[runLabel] == s.run {
				t.Errorf("snapshot %s was left behind", one.Name)
			}
		}
	}
	volumes, err := s.janitor.Volumes(t.Context(), runLabel, s.run)
	if err != nil {
		t.Fatalf("list volumes: %v", err)
	}
	for _, name := range volumes {
		t.Errorf("volume %s was left behind", name)
		if err := s.janitor.RemoveVolume(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
}

func wantError(t *testing.T, err, want error, words ...string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("got error %v, want one that wraps %q", err, want)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("error %q does not mention %q", err, word)
		}
	}
}

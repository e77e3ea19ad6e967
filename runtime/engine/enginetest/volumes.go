package enginetest

import (
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"

	"sandbox.internal/runtime/engine"
)

// readNote reads the note out of a directory of the image.
func (s *suite) readNote(t *testing.T, directory string) string {
	t.Helper()
	spec := s.spec("cat", "/data/link") // the link must have survived too
	spec.Mounts = []engine.Mount{{Directory: directory, Target: "/data"}}
	return s.output(t, spec)
}

func (s *suite) testEnsureDirectory(t *testing.T) {
	directory := s.directory(t)
	if got := s.readNote(t, directory); got != noteText {
		t.Errorf("the directory's note is %q, want %q", got, noteText)
	}
	change := s.spec("write", "/data/file", "text")
	change.Mounts = []engine.Mount{{Directory: directory, Target: "/data"}}
	if ended := s.waitStatus(t, s.start(t, change), engine.StatusExited); ended.ExitCode == 0 {
		t.Error("the directory was written to")
	}
	program := s.spec()
	program.Entrypoint = []string{"/data/probe", "print", "out:runs from the directory"}
	program.Mounts = []engine.Mount{{Directory: directory, Target: "/data"}}
	if got := s.output(t, program); got != "runs from the directory\n" {
		t.Errorf("the directory's program wrote %q", got)
	}
	labelled, err := s.janitor.Volumes(t.Context(), runLabel, s.run)
	if err != nil || !slices.Contains(labelled, directory) {
		t.Errorf("the directory does not carry its labels: %v, %v", labelled, err)
	}

	// In use, and filled: left alone.
	user := s.spec("sleep")
	user.Mounts = program.Mounts
	s.start(t, user)
	if err := s.engine.EnsureDirectory(t.Context(), directory, s.imageID, probeDirectory, s.labels()); err != nil {
		t.Errorf("EnsureDirectory of a complete directory: %v", err)
	}
}

// testMakeVolume: the first caller labels a volume, and all others get the labels that it has.
func (s *suite) testMakeVolume(t *testing.T) {
	volume := s.volume(t)
	if _, err := s.engine.VolumeLabels(t.Context(), volume); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("labels of a volume that does not exist: %v, want ErrNotFound", err)
	}
	const label = "enginetest.made-by"
	answers := make([]string, 4)
	var callers sync.WaitGroup
	for i := range answers {
		callers.Go(func() {
			labels := s.labels()
			labels[label] = strconv.Itoa(i)
			has, err := s.engine.MakeVolume(t.Context(), volume, labels)
			if err != nil {
				t.Errorf("MakeVolume: %v", err)
			}
			answers[i] = has[label]
		})
	}
	callers.Wait()
	has, err := s.engine.VolumeLabels(t.Context(), volume)
	if err != nil || has[label] == "" {
		t.Fatalf("labels %v, %v", has, err)
	}
	for i, answer := range answers {
		if answer != has[label] {
			t.Errorf("caller %d was answered label %q, and the volume has %q", i, answer, has[label])
		}
	}
}

// testEnsureDirectoryHeals: a volume that a crash left half full is filled, also before this engine
// first looks at it.
func (s *suite) testEnsureDirectoryHeals(t *testing.T) {
	volume := s.volume(t)
	half := s.spec("write", "/data/probe", "half a program")
	half.Mounts = []engine.Mount{{Volume: volume, Target: "/data"}}
	s.output(t, half)
	// A container that has ended still uses the volume.
	if err := s.engine.Remove(t.Context(), half.Name); err != nil {
		t.Fatal(err)
	}
	if err := s.engine.EnsureDirectory(t.Context(), volume, s.imageID, probeDirectory, s.labels()); err != nil {
		t.Fatalf("EnsureDirectory: %v", err)
	}
	if got := s.readNote(t, volume); got != noteText {
		t.Errorf("the volume's note is %q, want %q", got, noteText)
	}
}

func (s *suite) testEnsureDirectoryTogether(t *testing.T) {
	volume := s.volume(t)
	var group sync.WaitGroup
	for range 5 {
		group.Go(func() {
			if err := s.engine.EnsureDirectory(t.Context(), volume, s.imageID, probeDirectory, s.labels()); err != nil {
				t.Errorf("EnsureDirectory: %v", err)
			}
		})
	}
	group.Wait()
	if got := s.readNote(t, volume); got != noteText {
		t.Errorf("the volume's note is %q, want %q", got, noteText)
	}
}

func (s *suite) testEnsureDirectoryRefuses(t *testing.T) {
	err := s.engine.EnsureDirectory(t.Context(), s.volume(t), s.imageID, "/no/such/directory", s.labels())
	wantError(t, err, engine.ErrInvalid, "/no/such/directory")
	err = s.engine.EnsureDirectory(t.Context(), s.volume(t), "sha256:"+s.run, probeDirectory, s.labels())
	if err == nil {
		t.Error("an image that does not exist filled a volume")
	}
}

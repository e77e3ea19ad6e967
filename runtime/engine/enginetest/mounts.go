package enginetest

import (
	"errors"
	"os"
	"path"
	"path/filepath"
	"testing"

	"sandbox.internal/runtime/engine"
)

func (s *suite) testMounts(t *testing.T) {
	directory, volume := t.TempDir(), s.volume(t)
	run := func(m engine.Mount, words ...string) engine.Container {
		spec := s.spec(words...)
		spec.Mounts = []engine.Mount{m}
		return s.waitStatus(t, s.start(t, spec), engine.StatusExited)
	}
	for name, m := range map[string]engine.Mount{
		"host path": {HostPath: directory, Target: "/data"},
		"volume":    {Volume: volume, Target: "/data"},
	} {
		t.Run(name, func(t *testing.T) {
			if c := run(m, "write", "/data/file", "text"); c.ExitCode != 0 {
				t.Errorf("writing: exit code %d", c.ExitCode)
			}
			m.ReadOnly = true
			if c := run(m, "cat", "/data/file"); c.ExitCode != 0 {
				t.Errorf("reading what another container wrote: exit code %d", c.ExitCode)
			}
			if c := run(m, "write", "/data/file", "other"); c.ExitCode == 0 {
				t.Error("a read-only mount was written to")
			}
		})
	}
	if content, err := os.ReadFile(filepath.Join(directory, "file")); err != nil || string(content) != "text" {
		t.Errorf("the host's directory has %q, %v", content, err)
	}
}

func (s *suite) testMountRefuses(t *testing.T) {
	directory, volume := t.TempDir(), s.filledVolume(t)
	for name, m := range map[string]engine.Mount{
		"missing host path":       {HostPath: filepath.Join(directory, "missing"), Target: "/data"},
		"relative host path":      {HostPath: "data", Target: "/data"},
		"relative target":         {HostPath: directory, Target: "data"},
		"no source":               {Target: "/data"},
		"two sources":             {HostPath: directory, Volume: volume, Target: "/data"},
		"sub path of a host path": {HostPath: directory, SubPath: "sub", Target: "/data"},
		"sub path upwards":        {Volume: volume, SubPath: "../sub", Target: "/data"},
		"absolute sub path":       {Volume: volume, SubPath: "/directory", Target: "/data"},
		"missing sub path":        {Volume: volume, SubPath: "missing", Target: "/data"},
		"sub path of a directory": {Directory: s.directory(t), SubPath: "directory", Target: "/data"},
		"sub path of no volume":   {Volume: "enginetest-no-such-volume", SubPath: "directory", Target: "/data"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := s.spec("sleep")
			spec.Mounts = []engine.Mount{m}
			id, err := s.engine.Create(t.Context(), spec)
			if err == nil { // an engine may look only when it mounts
				err = s.engine.Start(t.Context(), id)
				_ = s.engine.Remove(t.Context(), id)
			}
			wantError(t, err, engine.ErrInvalid)
		})
	}
}

func (s *suite) testSubPath(t *testing.T) {
	volume := s.filledVolume(t)
	spec := s.spec("cat", "/data/note")
	spec.Mounts = []engine.Mount{{Volume: volume, SubPath: "directory", Target: "/data", ReadOnly: true}}
	if got := s.output(t, spec); got != noteText {
		t.Errorf("got %q, want %q", got, noteText)
	}
}

// testFreshVolume: an empty volume gets what the image has where it is mounted, once.
func (s *suite) testFreshVolume(t *testing.T) {
	volume := s.volume(t)
	spec := s.spec("cat", probeNote)
	spec.Mounts = []engine.Mount{{Volume: volume, Target: path.Dir(probeNote)}}
	if got := s.output(t, spec); got != noteText {
		t.Errorf("got %q, want %q", got, noteText)
	}
	spec = s.spec("write", probeNote, "changed")
	spec.Mounts = []engine.Mount{{Volume: volume, Target: path.Dir(probeNote)}}
	if ended := s.waitStatus(t, s.start(t, spec), engine.StatusExited); ended.ExitCode != 0 {
		t.Errorf("writing: exit code %d", ended.ExitCode)
	}
	spec = s.spec("cat", probeNote)
	spec.Mounts = []engine.Mount{{Volume: volume, Target: path.Dir(probeNote)}}
	if got := s.output(t, spec); got != "changed" {
		t.Errorf("got %q of a volume that was written to", got)
	}
}

// testMountOnLink: nothing is mounted where a symbolic link of the image leads.
func (s *suite) testMountOnLink(t *testing.T) {
	spec := s.spec("sleep")
	spec.Mounts = []engine.Mount{{HostPath: t.TempDir(), Target: "/way/directory"}}
	_, err := s.engine.Create(t.Context(), spec)
	var target *engine.TargetError
	if !errors.As(err, &target) || target.Target != "/way/directory" {
		t.Errorf("got %v, want an error about the target", err)
	}
	wantError(t, err, engine.ErrInvalid)
	_, err = s.engine.Inspect(t.Context(), spec.Name)
	wantError(t, err, engine.ErrNotFound)
}

// filledVolume returns a volume that holds the image's probe directory.
func (s *suite) filledVolume(t *testing.T) string {
	t.Helper()
	name := s.volume(t)
	spec := s.spec("copy", probeDirectory, "/data")
	spec.Mounts = []engine.Mount{{Volume: name, Target: "/data"}}
	if ended := s.waitStatus(t, s.start(t, spec), engine.StatusExited); ended.ExitCode != 0 {
		t.Fatalf("filling the volume ended with exit code %d", ended.ExitCode)
	}
	return name
}

// directory returns the name of the image's probe directory, made available.
func (s *suite) directory(t *testing.T) string {
	t.Helper()
	name := s.volume(t)
	if err := s.engine.EnsureDirectory(t.Context(), name, s.imageID, probeDirectory, s.labels()); err != nil {
		t.Fatalf("EnsureDirectory: %v", err)
	}
	return name
}

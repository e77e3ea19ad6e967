package oci_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci"
	"sandbox.internal/test/wait"
)

const diskBytes = 32 << 20

// eachKeeping runs a test on engines whose containers keep their files: once with a bound for
// these, and once without.
func eachKeeping(t *testing.T, test func(t *testing.T, s site)) {
	for name, bytes := range map[string]int64{"unbounded": 0, "bounded": diskBytes} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, "crun")
			s.DiskBytes, s.KeepFiles = bytes, true
			test(t, s)
			s.checkNothingLeft(t)
		})
	}
}

// kept is a container that keeps its files, and prints one of them at each start: it was written by
// the start before. Other tests publish ports on other addresses.
func kept(imageID string) engine.ContainerSpec {
	spec := probe(imageID, "again", "/written")
	spec.Network, spec.Publish, spec.PublishIP, spec.KeepFiles = engine.NetworkOwn, []int{8080}, "127.0.0.7", true
	return spec
}

func awaitLog(t testing.TB, e *oci.Engine, id, want string) {
	t.Helper()
	wait.Until(t, "the log has the line "+want, func() bool {
		log, err := e.Logs(t.Context(), id, 1000)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(log, want+"\n")
	})
}

// TestKeptAcrossReboot: a container that was to keep its files has them after the loss of
// everything but the disk, starts again only at a Start, and at each of them. After its removal no
// file of the container is left.
func TestKeptAcrossReboot(t *testing.T) {
	eachKeeping(t, func(t *testing.T, s site) {
		e := s.mustOpen(t)
		imageID := loadProbe(t, e)
		spec := kept(imageID)
		id := start(t, e, spec)
		awaitLog(t, e, id, "start 1")
		port := inspect(t, e, id).Ports[8080]
		other := start(t, e, kept(imageID))
		awaitLog(t, e, other, "start 1")
		closeEngine(t, e)

		for round := range 2 {
			if round == 0 {
				s.reboot(t, id, other)
			} else {
				s.reboot(t, id)
			}
			e = s.mustOpen(t)
			for _, id := range []string{id, other} {
				if c := inspect(t, e, id); c.Status != engine.StatusStopped || len(c.Ports) > 0 {
					t.Fatalf("round %d: a container that keeps its files is %s, with ports %v", round, c.Status, c.Ports)
				}
				if err := e.Thaw(t.Context(), id); !errors.Is(err, engine.ErrNotRunning) {
					t.Errorf("thaw: %v", err)
				}
			}
			closeEngine(t, e) // it is stopped for the next service, too
			e = s.mustOpen(t)
			if err := e.Start(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			awaitLog(t, e, id, "start "+string(rune('2'+round)))
			if c := inspect(t, e, id); c.Status != engine.StatusRunning || c.Ports[8080] != port {
				t.Errorf("started again it is %s, with ports %v; the port was %d", c.Status, c.Ports, port)
			}
			if round == 0 {
				closeEngine(t, e)
			}
		}
		if _, err := e.Create(t.Context(), spec); !errors.Is(err, engine.ErrExists) {
			t.Errorf("name of the removed container can be taken again: %v", err)
		}
		removeAll(t, e)
		closeEngine(t, e)
	})
}

// TestKeptWhateverTheSettingIs: what a container was started with counts, when the setting has
// changed.
func TestKeptWhateverTheSettingIs(t *testing.T) {
	s := newSite(t, "crun")
	e := s.mustOpen(t)
	imageID := loadProbe(t, e)
	before := start(t, e, kept(imageID))
	awaitLog(t, e, before, "start 1")
	closeEngine(t, e)
	s.KeepFiles = true
	e = s.mustOpen(t)
	id := start(t, e, kept(imageID))
	awaitLog(t, e, id, "start 1")
	plain := start(t, e, probe(imageID, "sleep"))
	closeEngine(t, e)
	s.KeepFiles = false
	s.reboot(t, id, before, plain)

	e = s.mustOpen(t)
	for _, id := range []string{before, plain} {
		if c := inspect(t, e, id); c.Status != engine.StatusExited || c.ExitCode != 137 || c.FilesLost != "" {
			t.Errorf("a container that was not to keep its files is %+v", c)
		}
		if err := e.Start(t.Context(), id); !errors.Is(err, engine.ErrNotRunning) {
			t.Errorf("start of one: %v", err)
		}
	}
	if err := e.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	awaitLog(t, e, id, "start 2")
	removeAll(t, e)
	closeEngine(t, e)
	s.checkNothingLeft(t)
}

// TestStartAfterEnd: a container that keeps its files can also be started again when its program
// has ended, and a start that fails takes none of them.
func TestStartAfterEnd(t *testing.T) {
	eachKeeping(t, func(t *testing.T, s site) {
		e := s.mustOpen(t)
		imageID := loadProbe(t, e)
		host := filepath.Join(t.TempDir(), "shared")
		if err := os.Mkdir(host, 0o755); err != nil { //nolint:gosec // a container mounts it
			t.Fatal(err)
		}
		spec := kept(imageID)
		spec.Mounts = []engine.Mount{{HostPath: host, Target: "/shared"}}
		id := start(t, e, spec)
		awaitLog(t, e, id, "start 1")
		if err := e.Stop(t.Context(), id, 0); err != nil {
			t.Fatal(err)
		}
		waitEnd(t, e, id)
		// The path leads elsewhere now: it was checked when the container was made.
		if err := errors.Join(os.Rename(host, host+"-before"), os.Symlink("/etc", host)); err != nil {
			t.Fatal(err)
		}
		if err := e.Start(t.Context(), id); !errors.Is(err, engine.ErrInvalid) || !strings.Contains(err.Error(), "symbolic link") {
			t.Fatalf("container was started with another host path: %v", err)
		}
		if c := inspect(t, e, id); c.Status != engine.StatusStopped || !strings.Contains(c.Error, "symbolic link") {
			t.Errorf("after a start that failed it is %s, %q", c.Status, c.Error)
		}
		if err := errors.Join(os.Remove(host), os.Rename(host+"-before", host)); err != nil {
			t.Fatal(err)
		}
		if err := e.Start(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		awaitLog(t, e, id, "start 2")
		removeAll(t, e)
		closeEngine(t, e)
	})
}

// TestWrittenLinks: what a container has put in the place of directories on its way decides nothing
// outside of it.
func TestWrittenLinks(t *testing.T) {
	eachKeeping(t, func(t *testing.T, s site) {
		e := s.mustOpen(t)
		imageID := loadProbe(t, e)
		id := start(t, e, kept(imageID))
		awaitLog(t, e, id, "start 1")
		if err := e.Stop(t.Context(), id, 0); err != nil {
			t.Fatal(err)
		}
		waitEnd(t, e, id)
		s.inDisk(t, id, func(upper string) {
			if err := errors.Join(os.RemoveAll(filepath.Join(upper, "proc")), os.Symlink("/tmp", filepath.Join(upper, "proc"))); err != nil {
				t.Fatal(err)
			}
		})
		if err := e.Start(t.Context(), id); !errors.Is(err, engine.ErrInvalid) || !strings.Contains(err.Error(), "/proc is a symbolic link") {
			t.Errorf("container was started with a link in the place of /proc: %v", err)
		}
		if c := inspect(t, e, id); c.Status != engine.StatusStopped {
			t.Errorf("container is %s", c.Status)
		}
		removeAll(t, e)
		closeEngine(t, e)
	})
}

// inDisk calls do with the directory that a container that does not run has written.
func (s site) inDisk(t *testing.T, id string, do func(upper string)) {
	t.Helper()
	directory := filepath.Join(s.Directory, "containers", id, "disk")
	if s.DiskBytes == 0 {
		do(filepath.Join(directory, "upper"))
		return
	}
	wait.Until(t, "the file system of the container is unmounted", func() bool { return len(s.loopDevices(t)) == 0 })
	opened, err := oci.OpenDisk(filepath.Join(directory, "filesystem"))
	if err != nil {
		t.Fatal(err)
	}
	do(opened.Path("upper"))
	if err := opened.Close(); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the file system of the container is unmounted", func() bool { return len(s.loopDevices(t)) == 0 })
}

// TestFilesLost: files that cannot be used after a reboot end their container, which says so, and
// keep the Engine from nothing else.
func TestFilesLost(t *testing.T) {
	eachKeeping(t, func(t *testing.T, s site) {
		e := s.mustOpen(t)
		imageID := loadProbe(t, e)
		id, other := start(t, e, kept(imageID)), start(t, e, kept(imageID))
		awaitLog(t, e, id, "start 1")
		awaitLog(t, e, other, "start 1")
		closeEngine(t, e)
		s.reboot(t, id, other)
		disk := filepath.Join(s.Directory, "containers", id, "disk")
		if s.DiskBytes == 0 {
			if err := os.RemoveAll(filepath.Join(disk, "upper")); err != nil {
				t.Fatal(err)
			}
		} else {
			wait.Until(t, "the file system of the container is unmounted", func() bool { return len(s.loopDevices(t)) == 0 })
			if err := os.WriteFile(filepath.Join(disk, "filesystem"), make([]byte, diskBytes), 0o600); err != nil {
				t.Fatal(err)
			}
		}

		e = s.mustOpen(t)
		if c := inspect(t, e, id); c.Status != engine.StatusExited || !strings.Contains(c.FilesLost, "missing or damaged") {
			t.Errorf("the container is %+v", c)
		}
		if c := inspect(t, e, other); c.Status != engine.StatusStopped {
			t.Errorf("the other one is %s", c.Status)
		}
		removeAll(t, e)
		closeEngine(t, e)
	})
}

// TestSyncedIsOnTheDisk: what a container syncs is written to the host's disk, which a mount
// without it (volatile) would leave out.
func TestSyncedIsOnTheDisk(t *testing.T) {
	s := newSite(t, "crun")
	s.KeepFiles = true
	e := s.mustOpen(t)
	id := start(t, e, kept(loadProbe(t, e)))
	awaitLog(t, e, id, "start 1")
	if _, err := os.Lstat(filepath.Join(s.Directory, "containers", id, "disk", "work", "work", "incompat", "volatile")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the root file system was mounted volatile: %v", err)
	}
	removeAll(t, e)
	closeEngine(t, e)
}

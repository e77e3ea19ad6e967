package oci_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/nftables"

	"sandbox.internal/test/wait"
)

// checkNothingLeft looks at the kernel and the disk once no container is there and the Engine is
// closed.
func (s site) checkNothingLeft(t *testing.T) {
	t.Helper()
	e := s.mustOpen(t)
	if left, err := e.List(t.Context(), nil); err != nil || len(left) > 0 {
		t.Errorf("containers %v were left behind, %v", left, err)
	}
	wait.Until(t, "the trash is empty", func() bool { return len(entries(t, s.Directory, "trash")) == 0 })
	closeEngine(t, e)
	for _, directory := range []string{"containers", "volumes", "directories"} {
		if left := entries(t, s.Directory, directory); len(left) > 0 {
			t.Errorf("the directory %s has %v", directory, left)
		}
	}
	if _, err := os.Lstat(s.RunDirectory); err == nil {
		t.Errorf("%s was left behind", s.RunDirectory)
	}
	sum := sha256.Sum256([]byte(s.Directory))
	group := "sandbox-" + hex.EncodeToString(sum[:4])
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, _ error) error { // groups come and go meanwhile
		if entry != nil && entry.Name() == group {
			t.Errorf("control group %s was left behind", path)
		}
		return nil
	})
	s.checkNoMounts(t)
	s.checkNoLoopDevice(t)
	s.checkNoProcess(t)
	s.checkNoNetwork(t)
}

func entries(t *testing.T, directory, name string) []string {
	t.Helper()
	found, err := os.ReadDir(filepath.Join(directory, name))
	if err != nil {
		t.Fatal(err)
	}
	names := make([]string, len(found))
	for i, entry := range found {
		names[i] = entry.Name()
	}
	return names
}

// checkNoMounts looks for mounts of ours in the mount namespace of every process.
func (s site) checkNoMounts(t *testing.T) {
	t.Helper()
	for pid := range processes(t) {
		mounts, err := os.ReadFile(filepath.Join("/proc", pid, "mountinfo"))
		if err != nil {
			continue // it has ended
		}
		for line := range bytes.Lines(mounts) {
			if bytes.Contains(line, []byte(s.Directory)) || bytes.Contains(line, []byte(s.RunDirectory)) {
				t.Errorf("process %s has the mount %s", pid, line)
			}
		}
	}
}

// loopDevices returns the files of this site that loop devices have.
func (s site) loopDevices(t *testing.T) []string {
	t.Helper()
	devices, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, path := range devices {
		file, err := os.ReadFile(path)
		if err == nil && bytes.HasPrefix(file, []byte(s.Directory)) { // it may have been detached meanwhile
			files = append(files, string(file))
		}
	}
	return files
}

// checkNoLoopDevice polls: the kernel detaches them behind the last unmount.
func (s site) checkNoLoopDevice(t *testing.T) {
	t.Helper()
	wait.Until(t, "every loop device is detached", func() bool { return len(s.loopDevices(t)) == 0 })
}

func (s site) checkNoProcess(t *testing.T) {
	t.Helper()
	for pid, command := range processes(t) {
		if strings.Contains(command, s.RunDirectory) || strings.Contains(command, s.Directory) {
			t.Errorf("process %s was left behind: %s", pid, command)
		}
	}
}

// processes returns the command lines of all processes but this one.
func processes(t *testing.T) map[string]string {
	t.Helper()
	found, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	commands := map[string]string{}
	for _, entry := range found {
		pid := entry.Name()
		if number, err := strconv.Atoi(pid); err != nil || number == os.Getpid() {
			continue
		}
		if command, err := os.ReadFile(filepath.Join("/proc", pid, "cmdline")); err == nil {
			commands[pid] = string(bytes.ReplaceAll(command, []byte{0}, []byte{' '}))
		}
	}
	return commands
}

func (s site) checkNoNetwork(t *testing.T) {
	t.Helper()
	sum := sha256.Sum256([]byte(s.Bridge))
	ports := "v" + hex.EncodeToString(sum[:3])
	wait.Until(t, "every network interface is removed", func() bool {
		links, err := net.Interfaces()
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range links {
			if link.Name == s.Bridge || strings.HasPrefix(link.Name, ports) {
				return false
			}
		}
		return true
	})
	tables, err := (&nftables.Conn{}).ListTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		if table.Name == s.Bridge {
			t.Errorf("nftables table %s was left behind", table.Name)
		}
	}
}

// dismantle removes what a test that failed has left.
func (s site) dismantle(t testing.TB) {
	if _, err := os.Lstat(s.RunDirectory); err != nil {
		return
	}
	ctx := context.WithoutCancel(t.Context())
	e, err := s.open(ctx, io.Discard)
	if err != nil {
		t.Errorf("open once more to clean up: %v", err)
		return
	}
	left, err := e.List(ctx, nil)
	if err != nil {
		t.Error(err)
	}
	for _, c := range left {
		if err := e.Remove(ctx, c.ID); err != nil {
			t.Error(err)
		}
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

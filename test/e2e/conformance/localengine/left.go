package localengine

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sandbox.internal/test/wait"
)

// Key is what the engine calls its control group and its directory below /run after.
func (m Machine) Key() string {
	sum := sha256.Sum256([]byte(m.Directory))
	return hex.EncodeToString(sum[:4])
}

// CommandLines returns those of the processes other than this one, by their ids; their words end
// with a zero byte.
func CommandLines() map[int]string {
	lines := map[int]string{}
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline") // its only error is a bad pattern
	for _, file := range files {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		content, readErr := os.ReadFile(file)
		if err == nil && readErr == nil && len(content) > 0 && pid != os.Getpid() {
			lines[pid] = string(content)
		}
	}
	return lines
}

// CheckNothingLeft looks for what the engine has made, once its service has ended without a
// sandbox.
func (m Machine) CheckNothingLeft(t *testing.T) {
	t.Helper()
	m.checkEmpty(t, EmptyDirectories)
}

// checkEnded looks for the same but in the trash, which an engine that closes leaves to the next
// one. A service that was refused has made none of the directories.
func (m Machine) checkEnded(t *testing.T) {
	t.Helper()
	m.checkEmpty(t, slices.DeleteFunc([]string{"containers", "images/making"}, func(name string) bool {
		_, err := os.Stat(filepath.Join(m.Directory, name))
		return errors.Is(err, fs.ErrNotExist)
	}))
}

// checkEmpty waits until there is nothing in these directories, and in the kernel.
func (m Machine) checkEmpty(t *testing.T, directories []string) {
	t.Helper()
	var left []string
	wait.Until(t, "nothing is left behind", func() bool {
		left = m.left(t, directories) // the kernel removes what a namespace had some time after its last process
		return len(left) == 0
	}, func() any { return strings.Join(left, ", ") })
}

// EmptyDirectories are the directories of the engine, below its own, that have no entry once there
// is no sandbox and nothing is pulled or removed.
var EmptyDirectories = []string{"containers", "trash", "images/making", "images/trash"}

func (m Machine) left(t *testing.T, directories []string) []string {
	t.Helper()
	var left []string
	for _, name := range directories {
		entries, err := os.ReadDir(filepath.Join(m.Directory, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			left = append(left, filepath.Join(name, entry.Name()))
		}
	}
	for pid, line := range CommandLines() {
		if strings.Contains(line, m.Directory) || strings.Contains(line, "/run/sandbox-local/"+m.Key()) {
			left = append(left, fmt.Sprintf("process %d (%q)", pid, line))
		}
		if mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid)); err == nil && bytes.Contains(mounts, []byte(m.Directory+"/")) {
			left = append(left, fmt.Sprintf("mounts in process %d", pid))
		}
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, _ error) error { // groups come and go meanwhile
		if entry != nil && entry.Name() == "sandbox-"+m.Key() {
			left = append(left, path)
		}
		return nil
	})
	sum := sha256.Sum256([]byte(m.Bridge))
	ports := "v" + hex.EncodeToString(sum[:3])
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if link.Name == m.Bridge || strings.HasPrefix(link.Name, ports) {
			left = append(left, "interface "+link.Name)
		}
	}
	return left
}

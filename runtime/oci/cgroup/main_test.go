package cgroup

import (
	crand "crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/test/wait"
)

// TestMain is also what the tests run in groups.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "in-group" {
		inGroup(os.Args[2])
		return
	}
	os.Exit(m.Run())
}

func inGroup(what string) {
	switch what {
	case "eat": // more memory than there is
		for held := [][]byte{}; len(held) < 1<<10; {
			block := make([]byte, 1<<20)
			for i := range block {
				block[i] = 1
			}
			held = append(held, block)
		}
	case "exec": // a program of several threads, again and again
		var locked sync.WaitGroup
		for range 8 {
			locked.Add(1)
			go func() {
				runtime.LockOSThread()
				locked.Done()
				_ = unix.Pause()
			}()
		}
		locked.Wait()
		fmt.Println("exec", unix.Exec("/proc/self/exe", os.Args, os.Environ()))
	case "fill": // the receive queues of sockets on the loopback interface
		fillSockets()
		fmt.Println("filled")
		_ = unix.Pause()
	case "open": // a node of a disk, of /dev/mem and of /dev/null
		for _, node := range []struct {
			kind         uint32
			major, minor uint32
		}{{unix.S_IFBLK, 7, 0}, {unix.S_IFCHR, 1, 1}, {unix.S_IFCHR, 10, 229}, {unix.S_IFCHR, 1, 3}, {unix.S_IFCHR, 1, 9}} {
			path := filepath.Join(os.Args[3], crand.Text())
			err := unix.Mknod(path, node.kind|0o600, int(unix.Mkdev(node.major, node.minor)))
			if err == nil {
				_, err = unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK, 0)
			}
			fmt.Printf("%d:%d %v\n", node.major, node.minor, err)
		}
	}
}

// newTree opens a tree of its own.
func newTree(t *testing.T) *Tree {
	t.Helper()
	tree, err := Open("cgroup-test-" + strings.ToLower(crand.Text()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeTree(t, tree) })
	return tree
}

func closeTree(t *testing.T, tree *Tree) {
	t.Helper()
	left, err := tree.List()
	if err != nil {
		t.Error(err)
	}
	for _, id := range left {
		if err := tree.Group(id).Remove(); err != nil {
			t.Error(err)
		}
	}
	if err := tree.Close(); err != nil {
		t.Error(err)
	}
	for _, h := range tree.hierarchies {
		if _, err := os.Stat(h.directory); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s was left behind: %v", h.directory, err)
		}
	}
}

// trees returns the tree of this host and, where version 2 is mounted without controllers beside
// version 1, one there: freezing, killing and devices take none.
func trees(t *testing.T) map[string]*Tree {
	t.Helper()
	all := map[string]*Tree{"of the host": newTree(t)}
	content, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(content)) {
		m, _, ok := parseMount(line)
		if !ok || !m.version2 || all["of the host"].version == "2" {
			continue
		}
		directory := filepath.Join(m.point, "cgroup-test-"+strings.ToLower(crand.Text()))
		if err := os.Mkdir(directory, 0o755); err != nil {
			t.Fatal(err)
		}
		tree := &Tree{version: "2", hierarchies: []hierarchy{{directory: directory, version2: true}}}
		t.Cleanup(func() { closeTree(t, tree) })
		all["version 2"] = tree
	}
	return all
}

// newGroup makes a group without limits.
func newGroup(t *testing.T, tree *Tree) Group {
	t.Helper()
	g := tree.Group(strings.ToLower(crand.Text()))
	for _, h := range tree.hierarchies {
		if err := os.Mkdir(g.directory(h), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := inherit(h, g.directory(h)); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

// task is a program that runs in a group.
type task struct {
	*exec.Cmd
	file string // of what it prints
}

// start runs a program inside the group.
func start(t *testing.T, g Group, arguments ...string) task {
	t.Helper()
	script := append([]string{"-c", `while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs" || exit 9; shift; done; shift; exec "$@"`, "enter"},
		g.Directories()...)
	command := exec.Command("sh", append(append(script, "--"), arguments...)...)
	output := filepath.Join(t.TempDir(), "output")
	file, err := os.Create(output)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	command.Stdout, command.Stderr = file, file
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	return task{command, output}
}

func output(t *testing.T, command task) string {
	t.Helper()
	text, err := os.ReadFile(command.file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// count runs a shell that writes numbers, and waits for the first.
func count(t *testing.T, g Group) task {
	t.Helper()
	command := start(t, g, "sh", "-c", "i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done")
	wait.Until(t, "output", func() bool { return output(t, command) != "" })
	return command
}

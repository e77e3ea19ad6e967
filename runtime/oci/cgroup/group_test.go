package cgroup

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/thread"
	"sandbox.internal/test/random"
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
		if _, err := os.Stat(h.folder); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s was left behind: %v", h.folder, err)
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
		folder := filepath.Join(m.point, "cgroup-test-"+strings.ToLower(crand.Text()))
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		tree := &Tree{version: "2", hierarchies: []hierarchy{{folder: folder, version2: true}}}
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
		if err := os.Mkdir(g.folder(h), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := inherit(h, g.folder(h)); err != nil {
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
		g.Folders()...)
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

func TestLimits(t *testing.T) {
	tree := newTree(t)
	for _, r := range []engine.Resources{
		{MemoryBytes: 64 << 20, NanoCPUs: 250_000_000, PIDs: 20}, {},
		{MemoryBytes: 32 << 20}, {MemoryBytes: 128 << 20, NanoCPUs: 10_000_000}, // changes
	} {
		g, err := tree.Make("one", r)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, folder := range g.Folders() {
			for _, name := range []string{
				"memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "cpu.cfs_quota_us", "pids.max",
				"memory.kmem.tcp.limit_in_bytes", "memory.max", "memory.swap.max", "cpu.max",
			} {
				if text, err := os.ReadFile(filepath.Join(folder, name)); err == nil {
					got[name] = strings.TrimSpace(string(text))
				}
			}
		}
		for name, want := range map[string]string{
			"memory.limit_in_bytes": orElse(r.MemoryBytes, "9223372036854771712"), "memory.memsw.limit_in_bytes": orElse(r.MemoryBytes, "9223372036854771712"),
			"memory.kmem.tcp.limit_in_bytes": orElse(r.MemoryBytes/4, "9223372036854771712"),
			"cpu.cfs_quota_us":               orElse(r.NanoCPUs/10_000, "-1"), "pids.max": orElse(r.PIDs, "max"),
			"memory.max": orElse(r.MemoryBytes, "max"), "cpu.max": orElse(r.NanoCPUs/10_000, "max") + " 100000",
			"memory.swap.max": map[bool]string{true: "0", false: "max"}[r.MemoryBytes > 0],
		} {
			if value, ok := got[name]; ok && value != want {
				t.Errorf("%+v: %s is %s, want %s", r, name, value, want)
			}
		}
		if len(got) < 3 {
			t.Errorf("found only the limits %v", got)
		}
	}
	if ids, err := tree.List(); err != nil || !slices.Equal(ids, []string{"one"}) {
		t.Errorf("List: %v, %v", ids, err)
	}
}

func orElse(n int64, unlimited string) string {
	if n == 0 {
		return unlimited
	}
	return strconv.FormatInt(n, 10)
}

func TestOOMKills(t *testing.T) {
	g, err := newTree(t).Make("one", engine.Resources{MemoryBytes: 32 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if kills, err := g.OOMKills(); err != nil || kills != 0 {
		t.Errorf("before: %d, %v", kills, err)
	}
	command := start(t, g, os.Args[0], "in-group", "eat")
	if err := command.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the process ended with %v", err)
	}
	if kills, err := g.OOMKills(); err != nil || kills != 1 {
		t.Errorf("after: %d, %v", kills, err)
	}
}

// socketsFilled and socketBytes are how many sockets fillSockets has, and how much the queue of
// each takes.
const (
	socketsFilled = 2000
	socketBytes   = 208 << 10
)

// fillSockets sends to UDP sockets of this process, which receive nothing, more than they have room
// for.
func fillSockets() {
	sender, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	datagram := make([]byte, 60_000)
	for i := 0; i < socketsFilled && err == nil; i++ {
		var socket int
		if socket, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0); err != nil {
			break
		}
		err = errors.Join(unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_RCVBUF, socketBytes/2), // the kernel doubles it
			unix.Bind(socket, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
		address, nameErr := unix.Getsockname(socket)
		err = errors.Join(err, nameErr)
		for range 2 * socketBytes / len(datagram) {
			if err == nil {
				_ = unix.Sendto(sender, datagram, unix.MSG_DONTWAIT, address) // may fail where the buffers of the sender count too
			}
		}
	}
	if err != nil {
		fmt.Println(err)
	}
}

// TestSocketBuffers: what the kernel keeps for sockets of a group is limited, too.
func TestSocketBuffers(t *testing.T) {
	const limit = 64 << 20
	g, err := newTree(t).Make("one", engine.Resources{MemoryBytes: limit})
	if err != nil {
		t.Fatal(err)
	}
	before := udpBytes(t)
	command := start(t, g, os.Args[0], "in-group", "fill")
	wait.Until(t, "the sockets are full", func() bool { return output(t, command) != "" })
	if text := output(t, command); text != "filled\n" {
		t.Fatal(text)
	}
	if took := udpBytes(t) - before; took < limit/16 || took > limit {
		t.Errorf("with a limit of %d bytes, sockets with room for %d took %d", limit, socketsFilled*socketBytes, took)
	}
	if err := g.Remove(); err != nil {
		t.Error(err)
	}
	// The kernel frees them a little after the end of the process.
	wait.Until(t, "the buffers are free", func() bool { return udpBytes(t)-before < limit/16 })
}

// udpBytes returns what UDP sockets take of this host's memory.
func udpBytes(t *testing.T) int {
	t.Helper()
	content, err := os.ReadFile("/proc/net/sockstat")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(content), "\nUDP: ")
	line, _, _ := strings.Cut(after, "\n")
	_, mem, _ := strings.Cut(line, " mem ")
	pages, err := strconv.Atoi(mem)
	if err != nil {
		t.Fatalf("%v in %s", err, content)
	}
	return pages * os.Getpagesize()
}

// TestMask: a container with a user namespace reads its limits, whatever the service's mask is.
func TestMask(t *testing.T) {
	before := unix.Umask(0o077)
	defer unix.Umask(before)
	tree := newTree(t)
	g, err := tree.Make("one", engine.Resources{MemoryBytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	folders := g.Folders()
	for _, h := range tree.hierarchies {
		folders = append(folders, h.folder)
	}
	for _, folder := range folders {
		if info, err := os.Stat(folder); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v, %v", folder, info.Mode(), err)
		}
	}
	if err := g.Remove(); err != nil {
		t.Error(err)
	}
}

func TestPIDs(t *testing.T) {
	g, err := newTree(t).Make("one", engine.Resources{PIDs: 5})
	if err != nil {
		t.Fatal(err)
	}
	command := start(t, g, "sh", "-c", "for i in 1 2 3 4 5 6 7; do sleep 100 & done; echo all")
	_ = command.Wait()
	if text := output(t, command); strings.Contains(text, "all") || text == "" {
		t.Errorf("seven processes under a limit of five: %s", text)
	}
}

func TestFreeze(t *testing.T) {
	for name, tree := range trees(t) {
		t.Run(name, func(t *testing.T) {
			g := newGroup(t, tree)
			command := count(t, g)
			for range 2 {
				if err := g.Freeze(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if frozen, err := g.Frozen(); err != nil || !frozen {
				t.Errorf("frozen %t, %v", frozen, err)
			}
			before := output(t, command)
			timer := time.NewTimer(50 * time.Millisecond) // there is no event to wait for
			<-timer.C
			if after := output(t, command); after != before {
				t.Errorf("a frozen process went on from %q to %q", before, after)
			}
			for range 2 {
				if err := g.Thaw(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if frozen, err := g.Frozen(); err != nil || frozen {
				t.Errorf("frozen %t, %v", frozen, err)
			}
			wait.Until(t, "output after the thaw", func() bool { return output(t, command) != before })
		})
	}
}

// TestFreezeForks: processes that are made while the group freezes are frozen, too.
func TestFreezeForks(t *testing.T) {
	testFreezes(t, "sh", "-c", "while :; do (:) & (:) & wait; done")
}

// TestFreezeExecs: a program of several threads is frozen while it executes another. On version 1
// that can stop the threads of the old one, whose end execve waits for, so that neither is frozen.
func TestFreezeExecs(t *testing.T) {
	testFreezes(t, os.Args[0], "in-group", "exec")
}

// testFreezes freezes what runs, at random moments.
func testFreezes(t *testing.T, arguments ...string) {
	moments := random.New(t)
	for name, tree := range trees(t) {
		t.Run(name, func(t *testing.T) {
			g := newGroup(t, tree)
			command := start(t, g, arguments...)
			for range 300 {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				if err := g.Freeze(ctx); err != nil {
					t.Fatal(err)
				}
				if err := g.Thaw(ctx); err != nil {
					t.Fatal(err)
				}
				cancel()
				thread.Sleep(time.Duration(moments.IntN(5000)) * time.Microsecond)
			}
			if text := output(t, command); text != "" {
				t.Errorf("the process prints %q", text)
			}
		})
	}
}

// TestKill ends processes that fork as fast as they can, that ignore signals, and that are frozen.
func TestKill(t *testing.T) {
	for name, tree := range trees(t) {
		for _, frozen := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, frozen %t", name, frozen), func(t *testing.T) {
				g := newGroup(t, tree)
				command := start(t, g, "sh", "-c", "trap '' TERM INT HUP; sleep 1000 & while :; do (:) & (:) & done")
				wait.Until(t, "processes", func() bool { empty, err := g.Empty(); return err == nil && !empty })
				if frozen {
					if err := g.Freeze(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if err := g.Kill(); err != nil {
					t.Fatal(err)
				}
				_ = command.Wait()
				wait.Until(t, "the group is empty", func() bool { empty, err := g.Empty(); return err == nil && empty })
			})
		}
	}
}

// TestRemove: with processes, with groups below it, and again.
func TestRemove(t *testing.T) {
	for name, tree := range trees(t) {
		t.Run(name, func(t *testing.T) {
			g := newGroup(t, tree)
			for _, h := range tree.hierarchies {
				below := filepath.Join(g.folder(h), "below")
				if err := os.Mkdir(below, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			command := count(t, g)
			for range 2 {
				if err := g.Remove(); err != nil {
					t.Fatal(err)
				}
			}
			if err := command.Wait(); err == nil {
				t.Error("the process ended by itself")
			}
			for _, folder := range g.Folders() {
				if _, err := os.Stat(folder); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s: %v", folder, err)
				}
			}
			if empty, err := g.Empty(); err != nil || !empty {
				t.Errorf("a group that is gone: empty %t, %v", empty, err)
			}
			if err := g.Kill(); err != nil {
				t.Errorf("Kill of a group that is gone: %v", err)
			}
		})
	}
}

func TestDevices(t *testing.T) {
	for name, tree := range trees(t) {
		t.Run(name, func(t *testing.T) {
			g := newGroup(t, tree)
			folder, h := g.in(devices)
			permit := permitDevices1
			if h.version2 {
				permit = permitDevices2
			}
			for range 70 { // again changes nothing: a group holds 64 programs
				if err := permit(folder, permitted); err != nil {
					t.Fatal(err)
				}
			}
			command := start(t, g, os.Args[0], "in-group", "open", t.TempDir())
			_ = command.Wait()
			want := "7:0 operation not permitted\n1:1 operation not permitted\n10:229 operation not permitted\n1:3 <nil>\n1:9 <nil>\n"
			if got := output(t, command); got != want {
				t.Errorf("opened %q, want %q", got, want)
			}
		})
	}
}

// TestNames: a group never leaves its tree.
func TestNames(t *testing.T) {
	tree := newTree(t)
	for _, id := range []string{"", ".", "..", "a/b", "../a", strings.Repeat("x", 129)} {
		g := tree.Group(id)
		if _, err := tree.Make(id, engine.Resources{}); err == nil {
			t.Errorf("Make(%q) worked", id)
		}
		if g.Kill() == nil || g.Remove() == nil {
			t.Errorf("Kill and Remove of %q worked", id)
		}
		if _, err := Open(id); err == nil {
			t.Errorf("Open(%q) worked", id)
		}
	}
}

func TestMakeRefuses(t *testing.T) {
	tree := newTree(t)
	if _, err := tree.Make("one", engine.Resources{PIDs: 1 << 60}); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("an impossible limit: %v, want ErrInvalid", err)
	}
}

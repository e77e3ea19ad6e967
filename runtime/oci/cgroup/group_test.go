package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/thread"
	"sandbox.internal/test/random"
	"sandbox.internal/test/wait"
)

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
		for _, directory := range g.Directories() {
			for _, name := range []string{
				"memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "cpu.cfs_quota_us", "pids.max",
				"memory.kmem.tcp.limit_in_bytes", "memory.max", "memory.swap.max", "cpu.max",
			} {
				if text, err := os.ReadFile(filepath.Join(directory, name)); err == nil {
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

// TestMask: a container with a user namespace reads its limits, whatever the service's mask is.
func TestMask(t *testing.T) {
	before := unix.Umask(0o077)
	defer unix.Umask(before)
	tree := newTree(t)
	g, err := tree.Make("one", engine.Resources{MemoryBytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	directories := g.Directories()
	for _, h := range tree.hierarchies {
		directories = append(directories, h.directory)
	}
	for _, directory := range directories {
		if info, err := os.Stat(directory); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v, %v", directory, info.Mode(), err)
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
				below := filepath.Join(g.directory(h), "below")
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
			for _, directory := range g.Directories() {
				if _, err := os.Stat(directory); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s: %v", directory, err)
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
			directory, h := g.in(devices)
			permit := permitDevices1
			if h.version2 {
				permit = permitDevices2
			}
			for range 70 { // again changes nothing: a group holds 64 programs
				if err := permit(directory, permitted); err != nil {
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

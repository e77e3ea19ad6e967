// Package cgroup keeps the control groups of containers: limits, access to devices, freezing, and
// what is needed to end and count what is in them. It supports version 1, version 2 and hosts with
// both.
//
// It writes the kernel's files itself. Of github.com/opencontainers/cgroups a process that needs
// four limits would link D-Bus, logrus and an eBPF assembler, and it can neither start a process
// inside a group nor wait with a deadline until a group is frozen.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
)

// Tree is a directory of groups of our own, in each hierarchy of the host that matters.
type Tree struct {
	name        string
	version     string
	hierarchies []hierarchy
}

// hierarchy is one mounted tree of control groups. On version 2 there is one, with all controllers.
type hierarchy struct {
	directory   string   // of the Tree, absolute
	path        string   // the same, as /proc/PID/cgroup shows it
	controllers []string // of version 1, e.g. "memory"; of the named hierarchy "name=systemd"
	version2    bool
}

func (h hierarchy) has(controller string) bool {
	return h.version2 || slices.Contains(h.controllers, controller)
}

var names = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}$`)

// Open returns the tree of the name, e.g. sandbox-1a2b3c4d, and makes it when it is missing: below
// the root of each hierarchy or, where that is not permitted, below the group of this process.
func Open(name string) (*Tree, error) {
	if !names.MatchString(name) {
		return nil, fmt.Errorf("control groups: name %q must match %s", name, names)
	}
	found, err := mounted()
	if err != nil {
		return nil, fmt.Errorf("control groups: %w", err)
	}
	t := &Tree{name: name, version: found.version}
	for _, mount := range found.mounts {
		h, err := mount.open(name)
		if err != nil {
			return nil, fmt.Errorf("control groups: %w", err)
		}
		t.hierarchies = append(t.hierarchies, h)
	}
	return t, nil
}

// Version is that of the hierarchies with the controllers: "1" or "2".
func (t *Tree) Version() string { return t.version }

// Close removes the tree's directories, unless there are groups left.
func (t *Tree) Close() error {
	var failed error
	for _, h := range t.hierarchies {
		err := unix.Rmdir(h.directory)
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EBUSY) &&
			!errors.Is(err, unix.ENOTEMPTY) {
			failed = errors.Join(failed, &fs.PathError{Op: "rmdir", Path: h.directory, Err: err})
		}
	}
	return failed
}

// Group returns the group of the container, whether it exists or not.
func (t *Tree) Group(id string) Group { return Group{tree: t, id: id} }

// Make makes the group of the container with its limits; one that exists is changed. It returns
// [engine.ErrInvalid] when the kernel refuses a limit. The caller removes what a failed call
// leaves.
func (t *Tree) Make(id string, r engine.Resources) (Group, error) { return t.MakeWith(id, r, nil) }

// MakeWith is Make for a container that may use more devices than others.
func (t *Tree) MakeWith(id string, r engine.Resources, more []specs.LinuxDeviceCgroup) (Group, error) {
	g := t.Group(id)
	if err := g.check(); err != nil {
		return g, err
	}
	for _, h := range t.hierarchies {
		directory := g.directory(h)
		if err := makeDirectory(directory); err != nil {
			return g, fmt.Errorf("control group: %w", err)
		}
		if err := limit(h, directory, r, append(slices.Clone(permitted), rules(more)...)); err != nil {
			return g, fmt.Errorf("control group: %w", err)
		}
	}
	return g, nil
}

// List returns the ids of the groups that exist in any of the hierarchies.
func (t *Tree) List() ([]string, error) {
	var ids []string
	for _, h := range t.hierarchies {
		entries, err := os.ReadDir(h.directory)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("list control groups: %w", err)
		}
		for _, entry := range entries {
			if entry.IsDir() {
				ids = append(ids, entry.Name())
			}
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// Group is the control group of one container, in each hierarchy.
type Group struct {
	tree *Tree
	id   string
}

// check keeps every path of the group inside the tree.
func (g Group) check() error {
	if !names.MatchString(g.id) {
		return fmt.Errorf("control group: id %q must match %s", g.id, names)
	}
	return nil
}

func (g Group) directory(h hierarchy) string { return filepath.Join(h.directory, g.id) }

// in returns the group's directory where the controller is.
func (g Group) in(controller string) (string, hierarchy) {
	for _, h := range g.tree.hierarchies {
		if h.has(controller) {
			return g.directory(h), h
		}
	}
	return "", hierarchy{} // Open refuses a host that lacks one
}

// Directories returns the group's directory in each hierarchy. A runtime must be started inside
// them: a process that is moved there when its container exists keeps the cgroup namespace, and so
// what the container sees below /sys/fs/cgroup, of the group in which the runtime ran.
func (g Group) Directories() []string {
	directories := make([]string, 0, len(g.tree.hierarchies))
	for _, h := range g.tree.hierarchies {
		directories = append(directories, g.directory(h))
	}
	return directories
}

// Path returns the group as runtimes want it in linux.cgroupsPath: relative to the root of the
// hierarchies.
func (g Group) Path() string {
	_, h := g.in(memory)
	return filepath.Join(h.path, g.id)
}

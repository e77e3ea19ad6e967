// Package containers has the containers of an Engine: their records on the disk, what is known
// about each in memory, and the events that watchers get.
package containers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/internal/background"
	"sandbox.internal/runtime/oci/internal/layout"
	"sandbox.internal/runtime/oci/internal/trash"
	"sandbox.internal/runtime/oci/keeper"
)

// Registry has the containers. It and each [Container] are safe for concurrent use.
type Registry struct {
	layout     layout.Layout
	trash      *trash.Trash
	background *background.Group
	log        zerolog.Logger

	// mu guards the fields below and the state of every container. Nothing blocks while it is held.
	mu       sync.Mutex
	byID     map[string]*Container
	byName   map[string]*Container // also while one is being created, then without an entry in byID
	watchers map[*watcher]struct{}
}

// Open reads the record of every container. A directory without a record is thrown away, and one
// whose record is cut off: either it was being created, or the host has lost power, and then
// nothing else of it is left. Any other record that cannot be read is an error, because it may be
// of a container that runs. Find, Lock, List and Watch fail once the group is closed.
func Open(l layout.Layout, t *trash.Trash, group *background.Group, log zerolog.Logger) (*Registry, error) {
	r := &Registry{
		layout: l, trash: t, background: group, log: log,
		byID: map[string]*Container{}, byName: map[string]*Container{}, watchers: map[*watcher]struct{}{},
	}
	entries, err := os.ReadDir(l.Containers())
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		at := l.Container(entry.Name())
		record, err := readRecord(at)
		var cutOff *json.SyntaxError
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.As(err, &cutOff) {
			return nil, fmt.Errorf("cannot read the record of a container: %w (remove the file to give the container up)", err)
		}
		if err != nil {
			log.Warn().Err(err).Str("container_id", entry.Name()).Msg("container has no record: removing its directory")
			if err := t.Throw(string(at)); err != nil {
				return nil, err
			}
			continue
		}
		c := r.newContainer(record)
		c.removing = record.Removing
		r.byID[c.ID], r.byName[c.Name] = c, c
	}
	return r, nil
}

func (r *Registry) newContainer(record Record) *Container {
	return &Container{
		ID: record.ID, Name: record.Spec.Name, Directory: r.layout.Container(record.ID), record: record, registry: r,
		lock: make(chan struct{}, 1), ended: make(chan struct{}), gone: make(chan struct{}),
	}
}

// Reserve takes the name of a container that is being created. No other method but Drop finds it
// before Add. base are the snapshots that the container lies on. The error is [engine.ErrExists]
// when the name is taken.
func (r *Registry) Reserve(spec engine.ContainerSpec, runtime string, base []string) (*Container, error) {
	c := r.newContainer(Record{ID: layout.NewID(), Spec: spec, Runtime: runtime, Base: base})
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byName[c.Name] != nil {
		return nil, engine.ErrExists
	}
	r.byName[c.Name] = c
	return c, nil
}

// Add writes the record of a container whose name was reserved, which can be found from then on.
func (r *Registry) Add(c *Container) error {
	if err := os.Mkdir(string(c.Directory), layout.DirectoryMode); err != nil {
		return err
	}
	if err := c.record.write(c.Directory); err != nil {
		return errors.Join(err, r.trash.Throw(string(c.Directory)))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byID[c.ID] = c
	return nil
}

// Drop makes the name of a container free that was reserved and not added.
func (r *Registry) Drop(c *Container) { r.dropName(c.Name) }

// DropTest makes the name of the container that tests user namespaces free; see [TestSpec]. A
// container that could not be removed can still be found by its id.
func (r *Registry) DropTest() { r.dropName(testName) }

func (r *Registry) dropName(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byName, name)
}

// Remove throws away the directory of a container, and with it the record, and drops the container.
// The caller holds its lock.
func (r *Registry) Remove(c *Container) error {
	if err := r.trash.Throw(string(c.Directory)); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byID, c.ID)
	if r.byName[c.Name] == c {
		delete(r.byName, c.Name)
	}
	close(c.gone)
	r.emit(c, engine.EventRemoved)
	return nil
}

// Find returns a container by its id or name. The error wraps [engine.ErrNotFound] when there is
// none.
func (r *Registry) Find(op, id string) (*Container, error) {
	if err := r.background.Check(op); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.byID[id]; c != nil {
		return c, nil
	}
	if c := r.byName[id]; c != nil && r.byID[c.ID] == c {
		return c, nil
	}
	return nil, notFound(op, id)
}

func notFound(op, id string) error { return fmt.Errorf("%s: %w: %s", op, engine.ErrNotFound, id) }

// Lock finds a container and waits for its lock. The caller unlocks it.
func (r *Registry) Lock(ctx context.Context, op, id string) (*Container, error) {
	c, err := r.Find(op, id)
	if err != nil {
		return nil, err
	}
	if err := c.Lock(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	select {
	case <-c.gone:
		c.Unlock()
		return nil, notFound(op, id)
	default:
		return c, nil
	}
}

// LockAlive finds a container that runs or is frozen, and waits for its lock. The caller unlocks
// it. The error wraps [engine.ErrNotRunning] when it does neither.
func (r *Registry) LockAlive(ctx context.Context, op, id string) (*Container, error) {
	c, err := r.Lock(ctx, op, id)
	if err != nil {
		return nil, err
	}
	status := c.Status()
	if alive(status) {
		return c, nil
	}
	c.Unlock()
	if status == engine.StatusRemoving {
		return nil, fmt.Errorf("%s: %w: it is %s", op, engine.ErrNotFound, status)
	}
	return nil, fmt.Errorf("%s: %w: it is %s", op, engine.ErrNotRunning, status)
}

// All returns every container that was added.
func (r *Registry) All() []*Container {
	r.mu.Lock()
	defer r.mu.Unlock()
	containers := make([]*Container, 0, len(r.byID))
	for _, c := range r.byID {
		containers = append(containers, c)
	}
	return containers
}

// Empty reports whether there is no container, not even one that is being created.
func (r *Registry) Empty() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.byName) == 0
}

// List describes the containers that have all the labels.
func (r *Registry) List(labels map[string]string) ([]engine.Container, error) {
	if err := r.background.Check("list containers"); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	found := []engine.Container{}
	for _, c := range r.byID {
		if carries(c.record.Spec.Labels, labels) {
			found = append(found, c.describe())
		}
	}
	return found, nil
}

// carries reports whether all the wanted labels are among those that something has.
func carries(has, wanted map[string]string) bool {
	for name, value := range wanted {
		if got, ok := has[name]; !ok || got != value {
			return false
		}
	}
	return true
}

// Images returns the ids of the images that containers are made of, or are being created from.
func (r *Registry) Images() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := map[string]bool{}
	for _, c := range r.byName {
		if !c.record.IsTest() { // which has no image
			seen[c.record.Spec.ImageID] = true
		}
	}
	ids := make([]string, 0, len(seen))
	for id := range seen {
		ids = append(ids, id)
	}
	return ids
}

// Bases returns the ids of the snapshots that containers lie on, or that are being created. An id
// may be there several times.
func (r *Registry) Bases() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ids []string
	for _, c := range r.byName {
		ids = append(ids, c.record.Base...)
	}
	return ids
}

// Restoring returns the ids of the snapshots whose processes containers are given at their next
// start.
func (r *Registry) Restoring() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ids []string
	for _, c := range r.byID {
		if c.record.Restore != "" {
			ids = append(ids, c.record.Restore)
		}
	}
	return ids
}

// MountedBy returns the name of a container with such a mount, also of one that is being created;
// "" when there is none.
func (r *Registry) MountedBy(is func(engine.Mount) bool) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, c := range r.byName {
		if c.mounts(is) {
			return name
		}
	}
	return ""
}

// UnlessMounted calls do unless a container other than that of the id has such a mount. No
// container is added while do runs.
func (r *Registry) UnlessMounted(id string, is func(engine.Mount) bool, do func() error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.byID {
		if c.ID != id && c.mounts(is) {
			return nil
		}
	}
	return do()
}

// mounts reports whether the container has such a mount. The Registry's mu is held.
func (c *Container) mounts(is func(engine.Mount) bool) bool {
	for _, m := range c.record.Spec.Mounts {
		if is(m) {
			return true
		}
	}
	return false
}

// Exited returns the container of an end that the keeper reports; nil when there is none, and when
// its start is not recorded yet: then [Container.SetStarted] returns the end.
func (r *Registry) Exited(id string, end keeper.End) *Container {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.byID[id]
	if c != nil && !c.record.Started() {
		c.early = &end
		return nil
	}
	return c
}

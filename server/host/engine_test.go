package host_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/wire/sandboxhttp"
)

// Names of the engine's calls, for faults and counts.
const (
	callInfo         = "Info"
	callEnsureImage  = "EnsureImage"
	callCreate       = "Create"
	callMakeVolume   = "MakeVolume"
	callVolumeLabels = "VolumeLabels"
	callStart        = "Start"
	callFreeze       = "Freeze"
	callThaw         = "Thaw"
	callStop         = "Stop"
	callRemove       = "Remove"
	callInspect      = "Inspect"
	callWatch        = "Watch"
	callOpenLog      = "OpenLog"
)

// fault runs around a call of the engine and may delay it, or make it fail.
type fault func(ctx context.Context, name string) error

// memoryEngine is an engine.Engine whose containers are entries in a map. Their published port is a
// real one that answers /ping, and proves that it holds the token of the container's record.
type memoryEngine struct {
	t   testing.TB
	own []string // paths of its own

	mu         sync.Mutex
	containers map[string]*engine.Container // by name
	mounts     map[string][]engine.Mount    // by the name of the container
	joins      map[string]string            // what the container joins, by its name
	volumes    map[string]map[string]string // labels, by name
	tokens     map[string]string            // of the daemons, by the name of the container that was created
	logs       string
	before     map[string]fault // a call that fails here does nothing
	after      map[string]fault // a call that fails here has been carried out all the same
	counts     map[string]int
	listeners  map[chan engine.Event]bool
	ping       http.HandlerFunc
	ports      map[string]int // by name

	files     map[string]string // of containers, by name: what they have written
	images    map[string]string // of containers, by name
	snapshots map[string]memorySnapshot
	// restoreError is why processes of snapshots are not restored; empty when they are.
	restoreError string

	rests      map[string]*memoryRest // of containers, by name
	ended      chan struct{}          // closed when the test is over
	endStreams func()
}

var _ engine.Engine = (*memoryEngine)(nil)

func newMemoryEngine(t testing.TB) *memoryEngine {
	e := &memoryEngine{
		containers: map[string]*engine.Container{},
		mounts:     map[string][]engine.Mount{},
		joins:      map[string]string{},
		volumes:    map[string]map[string]string{},
		tokens:     map[string]string{},
		before:     map[string]fault{},
		after:      map[string]fault{},
		counts:     map[string]int{},
		listeners:  map[chan engine.Event]bool{},
		ports:      map[string]int{},
		files:      map[string]string{},
		images:     map[string]string{},
		snapshots:  map[string]memorySnapshot{},
		rests:      map[string]*memoryRest{},
		ended:      make(chan struct{}),
		t:          t,
	}
	e.endStreams = sync.OnceFunc(func() { close(e.ended) })
	return e
}

// published returns the ports of a container, which are one server's. The caller holds the lock.
func (e *memoryEngine) published(c *engine.Container) map[int]int {
	port, ok := e.ports[c.Name]
	if !ok {
		name := c.Name
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			e.mu.Lock()
			ping := e.ping
			// The owner of a network publishes the port of its sandbox's daemon.
			sandbox := strings.TrimSuffix(strings.TrimSuffix(name, "-egress"), "-network")
			token, created := e.tokens[sandbox]
			if c := e.containers[sandbox]; c != nil && !created {
				var record lifecycle.Record
				// some tests have others
				_ = json.Unmarshal([]byte(c.Labels[lifecycle.LabelPrefix+"record"]), &record)
				token = record.Token
			}
			e.mu.Unlock()
			w.Header().Set(sandboxhttp.ProofHeader, sandboxhttp.Proof(token, r.Header.Get(sandboxhttp.ChallengeHeader)))
			switch {
			case e.serveRest(sandbox, w, r):
			case ping != nil:
				ping(w, r)
			}
		}))
		e.t.Cleanup(func() { // before the host ends, which follows the rest of sandboxes
			e.endStreams()
			server.Close()
		})
		port = server.Listener.Addr().(*net.TCPAddr).Port
		e.ports[c.Name] = port
	}
	return map[int]int{44772: port, 18080: port}
}

// port returns the published port of a container.
func (e *memoryEngine) port(name string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ports[name]
}

// failBefore makes a call fail without effect, failAfter in spite of its effect; a nil fault heals
// it.
func (e *memoryEngine) failBefore(call string, f fault) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.before[call] = f
}

func (e *memoryEngine) failAfter(call string, f fault) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.after[call] = f
}

func (e *memoryEngine) answerPing(f http.HandlerFunc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ping = f
}

func (e *memoryEngine) count(call string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.counts[call]
}

// around runs one call with its faults.
func (e *memoryEngine) around(ctx context.Context, call, name string, act func() error) error {
	e.mu.Lock()
	e.counts[call]++
	before, after := e.before[call], e.after[call]
	e.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if before != nil {
		if err := before(ctx, name); err != nil {
			return err
		}
	}
	e.mu.Lock()
	err := act()
	e.mu.Unlock()
	if err == nil && after != nil {
		err = after(ctx, name)
	}
	return err
}

// find returns the container with that name or id.
func (e *memoryEngine) find(id string) (*engine.Container, error) {
	if c, ok := e.containers[id]; ok {
		return c, nil
	}
	for _, c := range e.containers {
		if c.ID == id {
			return c, nil
		}
	}
	return nil, fmt.Errorf("%w: %s", engine.ErrNotFound, id)
}

func (e *memoryEngine) emit(kind engine.EventType, c *engine.Container) {
	for listener := range e.listeners {
		listener <- engine.Event{Type: kind, Labels: maps.Clone(c.Labels)}
	}
}

// put makes a container appear without a word.
func (e *memoryEngine) put(c engine.Container) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.Ports == nil {
		c.Ports = e.published(&c)
	}
	c.ID = "id-of-" + c.Name
	e.containers[c.Name] = &c
}

// happen changes a container without the service, and sends the event.
func (e *memoryEngine) happen(name string, kind engine.EventType, change func(*engine.Container)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c, ok := e.containers[name]
	if !ok {
		return
	}
	if kind == engine.EventRemoved {
		delete(e.containers, name)
	} else {
		change(c)
	}
	e.emit(kind, c)
}

func (e *memoryEngine) exit(name string, code int, oom bool) {
	e.happen(name, engine.EventExited, func(c *engine.Container) {
		c.Status, c.ExitCode, c.OOMKilled = engine.StatusExited, code, oom
	})
}

// status returns what the container does, empty when there is none.
func (e *memoryEngine) status(name string) engine.Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c, ok := e.containers[name]; ok {
		return c.Status
	}
	return ""
}

func (e *memoryEngine) names() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	names := []string{}
	for name := range e.containers {
		names = append(names, name)
	}
	return names
}

// hangUp ends every Watch, as an engine does that is restarted.
func (e *memoryEngine) hangUp() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for listener := range e.listeners {
		delete(e.listeners, listener)
		close(listener)
	}
}

func (e *memoryEngine) Info(ctx context.Context) (engine.Info, error) {
	err := e.around(ctx, callInfo, "", func() error { return nil })
	return engine.Info{Name: "memory", CPUs: 4, MemoryBytes: 8 << 30, OwnPaths: e.own}, err
}

func (e *memoryEngine) EnsureImage(ctx context.Context, ref string, _ *engine.RegistryAuth, progress func(string)) (string, error) {
	if progress != nil {
		progress("resolving " + ref)
	}
	return "sha256:" + ref, e.around(ctx, callEnsureImage, ref, func() error { return nil })
}

// FindImage finds the images of the service, and no others.
func (e *memoryEngine) FindImage(ctx context.Context, ref string) (engine.Image, error) {
	if ref != "execd" && ref != "egress" {
		return engine.Image{}, engine.ErrImage
	}
	err := e.around(ctx, callEnsureImage, ref, func() error { return nil })
	return engine.Image{ID: "sha256:" + ref, Names: []string{"docker.io/library/" + ref + ":latest"}}, err
}

func (e *memoryEngine) ProveAccess(context.Context, string, *engine.RegistryAuth) error { return nil }

func (e *memoryEngine) EnsureDirectory(context.Context, string, string, string, map[string]string) error {
	return nil
}

func (e *memoryEngine) MakeVolume(ctx context.Context, name string, labels map[string]string) (has map[string]string, err error) {
	err = e.around(ctx, callMakeVolume, name, func() error {
		if e.volumes[name] == nil {
			e.volumes[name] = maps.Clone(labels)
		}
		has = maps.Clone(e.volumes[name])
		return nil
	})
	return has, err
}

func (e *memoryEngine) VolumeLabels(ctx context.Context, name string) (has map[string]string, err error) {
	err = e.around(ctx, callVolumeLabels, name, func() error {
		labels, there := e.volumes[name]
		if !there {
			return fmt.Errorf("%w: volume %s", engine.ErrNotFound, name)
		}
		has = maps.Clone(labels)
		return nil
	})
	return has, err
}

// mountsOf returns the mounts that a container was created with.
func (e *memoryEngine) mountsOf(name string) []engine.Mount {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mounts[name]
}

func (e *memoryEngine) Create(ctx context.Context, spec engine.ContainerSpec) (string, error) {
	err := e.around(ctx, callCreate, spec.Name, func() error {
		if e.containers[spec.Name] != nil {
			return fmt.Errorf("%w: %s", engine.ErrExists, spec.Name)
		}
		if spec.Snapshot != "" {
			from, there := e.snapshots[spec.Snapshot]
			if !there {
				return fmt.Errorf("%w: %s", engine.ErrNoSnapshot, spec.Snapshot)
			}
			if from.ImageID != spec.ImageID {
				return fmt.Errorf("%w: snapshot of image %q, container of %q", engine.ErrInvalid, from.ImageID, spec.ImageID)
			}
			e.files[spec.Name] = from.files
		}
		e.images[spec.Name] = spec.ImageID
		e.mounts[spec.Name] = slices.Clone(spec.Mounts)
		e.joins[spec.Name] = spec.Join
		e.tokens[spec.Name] = spec.Env["EXECD_ACCESS_TOKEN"]
		e.containers[spec.Name] = &engine.Container{
			ID: "id-of-" + spec.Name, Name: spec.Name, Labels: maps.Clone(spec.Labels), Status: engine.StatusCreated,
		}
		return nil
	})
	return "id-of-" + spec.Name, err
}

func (e *memoryEngine) Start(ctx context.Context, id string) error {
	return e.around(ctx, callStart, id, func() error {
		c, err := e.find(id)
		if err != nil {
			return err
		}
		if owner := e.joins[c.Name]; owner != "" && (e.containers[owner] == nil || e.containers[owner].Status != engine.StatusRunning) {
			return fmt.Errorf("%w: cannot join the network of %s", engine.ErrNotRunning, owner)
		}
		c.Status, c.Ports = engine.StatusRunning, e.published(c)
		e.emit(engine.EventStarted, c)
		return nil
	})
}

func (e *memoryEngine) Freeze(ctx context.Context, id string) error {
	return e.around(ctx, callFreeze, id, func() error { return e.turn(id, engine.StatusFrozen, engine.EventFrozen) })
}

func (e *memoryEngine) Thaw(ctx context.Context, id string) error {
	return e.around(ctx, callThaw, id, func() error { return e.turn(id, engine.StatusRunning, engine.EventThawed) })
}

func (e *memoryEngine) turn(id string, to engine.Status, kind engine.EventType) error {
	c, err := e.find(id)
	switch {
	case err != nil:
		return err
	case c.Status == to:
		return nil
	case c.Status == engine.StatusCreated, c.Status == engine.StatusExited, c.Status == engine.StatusStopped, c.Status == engine.StatusRemoving:
		return fmt.Errorf("%w: it is %s", engine.ErrNotRunning, c.Status)
	}
	c.Status = to
	if to == engine.StatusFrozen {
		e.restOf(c.Name).frozen++
	}
	e.emit(kind, c)
	return nil
}

func (e *memoryEngine) Stop(ctx context.Context, id string, _ time.Duration) error {
	return e.around(ctx, callStop, id, func() error {
		if c, err := e.find(id); err == nil && c.Status != engine.StatusExited && c.Status != engine.StatusStopped {
			c.Status, c.ExitCode = engine.StatusExited, 143
			e.emit(engine.EventExited, c)
		}
		return nil
	})
}

func (e *memoryEngine) Remove(ctx context.Context, id string) error {
	return e.around(ctx, callRemove, id, func() error {
		if c, err := e.find(id); err == nil {
			delete(e.containers, c.Name)
			e.emit(engine.EventRemoved, c)
		}
		return nil
	})
}

func (e *memoryEngine) Inspect(ctx context.Context, id string) (found engine.Container, err error) {
	err = e.around(ctx, callInspect, id, func() error {
		c, err := e.find(id)
		if err == nil {
			found = *c
			found.Labels, found.Ports = maps.Clone(c.Labels), maps.Clone(c.Ports)
		}
		return err
	})
	return found, err
}

func (e *memoryEngine) List(ctx context.Context, labels map[string]string) ([]engine.Container, error) {
	var found []engine.Container
	err := e.around(ctx, "List", "", func() error {
		for _, c := range e.containers {
			if matches(c.Labels, labels) {
				found = append(found, *c)
			}
		}
		return nil
	})
	return found, err
}

func matches(have, want map[string]string) bool {
	for name, value := range want {
		if have[name] != value {
			return false
		}
	}
	return true
}

func (e *memoryEngine) Watch(ctx context.Context, labels map[string]string, ready func(), handle func(engine.Event)) error {
	listener := make(chan engine.Event, 10_000)
	err := e.around(ctx, callWatch, "", func() error {
		e.listeners[listener] = true
		return nil
	})
	if err != nil {
		return err
	}
	ready()
	for {
		select {
		case event, open := <-listener:
			if !open {
				return fmt.Errorf("%w: hung up", engine.ErrUnavailable)
			}
			if matches(event.Labels, labels) {
				handle(event)
			}
		case <-ctx.Done():
			e.mu.Lock()
			delete(e.listeners, listener)
			e.mu.Unlock()
			return ctx.Err()
		}
	}
}

func (e *memoryEngine) Close() error { return nil }

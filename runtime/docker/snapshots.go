package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/system"

	"sandbox.internal/internal/failpoint"
	"sandbox.internal/runtime/engine"
)

var _ engine.Snapshots = (*Engine)(nil)

// Failpoints of a snapshot and of a rollback.
const (
	// CommittedFailpoint: there is the image of a commit, and no snapshot.
	CommittedFailpoint = "docker-snapshot-committed"
	// KeptFailpoint: there is the snapshot, and the image of its commit.
	KeptFailpoint = "docker-snapshot-kept"
	// ReplacingFailpoint: there is the container with the files of the snapshot, beside the other.
	ReplacingFailpoint = "docker-rollback-replacing"
	// RemovedFailpoint: the other one is removed, and the container has not got its name.
	RemovedFailpoint = "docker-rollback-removed"
)

const (
	// commitTimeout bounds how long the engine writes what a container has written to a layer.
	commitTimeout = 30 * time.Minute
	// maxCommitBytes bounds that. Of files with holes the holes count, which the layer has as zeros.
	maxCommitBytes = 64 << 30
	// maxLayers is how many layers an image of a Docker Engine can have.
	maxLayers = 125
	// commitAttempts bounds how often a commit is repeated before which the container could not be
	// frozen.
	commitAttempts = 3
)

// snapshotNames are the names that snapshots can have: those of tags.
var snapshotNames = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}$`)

// containerdStore is in the status of engines whose images are in containerd. There a commit needs
// layers as they were pulled, and the other image could not be made of those of the first.
const containerdStore = "io.containerd.snapshotter.v1"

// CheckAbility implements [engine.Snapshots].
func (e *Engine) CheckAbility(ability engine.Ability) error {
	switch {
	case ability == engine.AbilityComparison:
		return fmt.Errorf("%w: a Docker Engine does not compare snapshots", errors.ErrUnsupported)
	case ability == engine.AbilitySuspension:
		return fmt.Errorf("%w: a Docker Engine does not connect a container that has ended to a new network", errors.ErrUnsupported)
	case e.containerd.Load():
		return fmt.Errorf("%w: snapshots need a Docker Engine with a storage driver such as overlay2, and this one keeps its images in containerd", errors.ErrUnsupported)
	}
	return nil
}

// KeepsMemory implements [engine.Snapshots].
func (e *Engine) KeepsMemory(string) error {
	return fmt.Errorf("%w: a Docker Engine does not keep the processes of a container in files", engine.ErrNoMemory)
}

// learnStore keeps where the engine has its images.
func (e *Engine) learnStore(info system.Info) {
	e.containerd.Store(slices.ContainsFunc(info.DriverStatus, func(pair [2]string) bool { return pair[1] == containerdStore }))
}

// takings are the snapshots that are being made, by name.
type taking struct {
	container string // its id
	calls     int
}

// beginTaking notes that a snapshot is made of a container, until end is called.
func (e *Engine) beginTaking(name, container string) (end func(), err error) {
	e.takingMu.Lock()
	defer e.takingMu.Unlock()
	t := e.taking[name]
	if t == nil {
		t = &taking{container: container}
		e.taking[name] = t
	}
	if t.container != container {
		return nil, fmt.Errorf("%w: a snapshot of that name is made of another container", engine.ErrExists)
	}
	t.calls++
	return func() {
		e.takingMu.Lock()
		defer e.takingMu.Unlock()
		if t.calls--; t.calls == 0 {
			delete(e.taking, name)
		}
	}, nil
}

func (e *Engine) isTaking(name string) bool {
	e.takingMu.Lock()
	defer e.takingMu.Unlock()
	return e.taking[name] != nil
}

// TakeSnapshot implements [engine.Snapshots]. The container is not started, frozen, thawed, stopped
// or removed by other calls meanwhile, nor, when ctx ends, until the engine has answered: it goes
// on with the commit, with the container frozen. The engine thaws it, also when this process is
// killed.
func (e *Engine) TakeSnapshot(ctx context.Context, id string, options engine.SnapshotOptions) (engine.Snapshot, error) {
	op := "take snapshot " + options.Name + " of container " + id
	if err := e.CheckAbility(engine.AbilitySnapshots); err != nil {
		return engine.Snapshot{}, fmt.Errorf("%s: %w", op, err)
	}
	if options.Memory {
		return engine.Snapshot{}, fmt.Errorf("%s: %w", op, e.KeepsMemory(""))
	}
	if !snapshotNames.MatchString(options.Name) {
		return engine.Snapshot{}, fmt.Errorf("%s: %w: name %.200q", op, engine.ErrInvalid, options.Name)
	}
	found, err := e.inspect(ctx, id)
	if errors.Is(err, engine.ErrNotFound) {
		if k, _, had := e.findSnapshot(ctx, options.Name); had == nil {
			return k.describe(), nil
		}
	}
	if err != nil {
		return engine.Snapshot{}, fmt.Errorf("%s: %w", op, err)
	}
	end, err := e.beginTaking(options.Name, found.ID)
	if err != nil {
		return engine.Snapshot{}, fmt.Errorf("%s: %w", op, err)
	}
	unlock, err := e.locks.lock(ctx, found.ID, strings.TrimPrefix(found.Name, "/"))
	if err != nil {
		end()
		return engine.Snapshot{}, fmt.Errorf("%s: %w", op, err)
	}
	var commits sync.WaitGroup
	taken, err := e.takeSnapshot(ctx, found.ID, options, &commits)
	release := func() {
		commits.Wait()
		unlock()
		end()
	}
	if ctx.Err() == nil || !e.inBackground(release) {
		release()
	}
	if err != nil {
		return engine.Snapshot{}, fmt.Errorf("%s: %w", op, explainSnapshot(err))
	}
	return taken, nil
}

// explainSnapshot says which of the contract's errors a snapshot or a rollback has failed with.
func explainSnapshot(err error) error {
	says := func(words string) bool { return strings.Contains(err.Error(), words) }
	switch {
	case says("no space left on device"), says("disk quota exceeded"):
		return fmt.Errorf("%w: %w", engine.ErrNoRoom, err)
	case says("max depth exceeded"):
		return fmt.Errorf("%w: %w", engine.ErrInvalid, err)
	}
	return err
}

// takeSnapshot makes a snapshot of a container that is locked. When ctx ends, commits has what the
// engine has not answered yet.
func (e *Engine) takeSnapshot(ctx context.Context, id string, options engine.SnapshotOptions, commits *sync.WaitGroup) (engine.Snapshot, error) {
	k, _, err := e.findSnapshot(ctx, options.Name)
	if err == nil || !errors.Is(err, engine.ErrNoSnapshot) {
		return k.describe(), err
	}
	for attempt := 1; ; attempt++ {
		found, parent, err := e.checkSnapshot(ctx, id, options.MaxBytes)
		if err != nil {
			return engine.Snapshot{}, err
		}
		committed, frozen, err := e.commit(ctx, found, options.Name, commits)
		if errors.Is(err, engine.ErrBusy) && attempt < commitAttempts {
			continue
		}
		if err != nil {
			return engine.Snapshot{}, err
		}
		failpoint.Hit(CommittedFailpoint)
		base := found.Image
		if labelled(found, parent) {
			base = baseOf(found)
		}
		k = kept{
			Name: options.Name, Labels: options.Labels, Base: base, Frozen: frozen, Created: time.Now().UTC().Round(0),
		}
		taken, err := e.keep(ctx, k, parent, committed, options.MaxBytes)
		if failed := e.dropCommit(context.WithoutCancel(ctx), committed); failed != nil {
			e.log.Warn().Err(failed).Str("image", committed).Msg("cannot remove the image of a commit; retried when snapshots are listed")
		}
		return taken, err
	}
}

// checkSnapshot refuses containers that no snapshot can be taken of, and returns the container and
// its image.
func (e *Engine) checkSnapshot(ctx context.Context, id string, maxBytes int64) (found container.InspectResponse, parent image.InspectResponse, err error) {
	err = e.call(ctx, "measure container "+id, forContainer, func(ctx context.Context) (err error) {
		found, _, err = e.api.ContainerInspectWithRaw(ctx, id, true)
		return err
	})
	if err != nil {
		return found, parent, err
	}
	switch c := fromInspect(found); c.Status {
	case engine.StatusRunning, engine.StatusFrozen, engine.StatusStopped:
	case engine.StatusRemoving:
		return found, parent, fmt.Errorf("%w: it is %s", engine.ErrNotFound, c.Status)
	default:
		return found, parent, fmt.Errorf("%w: it is %s", engine.ErrNotRunning, c.Status)
	}
	if machine := e.machine.Load(); machine != nil && found.HostConfig != nil && !machine.runtimes[found.HostConfig.Runtime] {
		return found, parent, fmt.Errorf("%w: snapshot: the runtime %s may keep in its memory what a container has written",
			engine.ErrInvalid, found.HostConfig.Runtime)
	}
	if written := found.SizeRw; written != nil {
		switch {
		case maxBytes > 0 && *written > maxBytes:
			return found, parent, fmt.Errorf("%w: the container has written %d bytes, holes included, and may have %d", engine.ErrSnapshotTooLarge, *written, maxBytes)
		case *written > maxCommitBytes:
			return found, parent, fmt.Errorf("%w: the container has written %d bytes, holes included, and %d are the limit", engine.ErrSnapshotTooLarge, *written, int64(maxCommitBytes))
		}
	}
	parent, err = e.inspectAnyImage(ctx, found.Image)
	if errors.Is(err, engine.ErrImage) {
		return found, parent, fmt.Errorf("%w: snapshot: the image of the container was removed", engine.ErrInvalid)
	}
	if n := len(parent.RootFS.Layers); err == nil && n >= maxLayers {
		return found, parent, fmt.Errorf("%w: snapshot: the image of the container and its snapshots have %d layers, one on the other, and Docker can have no more", engine.ErrInvalid, n)
	}
	return found, parent, err
}

// commit has the engine make an image of the container, and returns its id, and for how long the
// container was frozen.
func (e *Engine) commit(
	ctx context.Context, found container.InspectResponse, name string, commits *sync.WaitGroup,
) (id string, frozen time.Duration, err error) {
	running := fromInspect(found).Status == engine.StatusRunning
	var since time.Time
	end := func(bool) {}
	if running {
		if since, err = e.now(ctx); err != nil {
			return "", 0, err
		}
		end = e.unseen.begin(found.ID)
	}
	began := time.Now()
	made := e.beginCommit(ctx, found.ID, name, commits)
	var answer committed
	select {
	case answer = <-made:
	case <-ctx.Done():
		commits.Go(func() {
			answer := <-made
			end(false)
			if answer.id == "" {
				return
			}
			if err := e.dropCommit(context.WithoutCancel(ctx), answer.id); err != nil {
				e.log.Warn().Err(err).Str("image", answer.id).Msg("cannot remove the image of a commit; retried when snapshots are listed")
			}
		})
		return "", 0, ctx.Err()
	}
	defer func() { end(err == nil && frozen > 0) }()
	lasted := time.Since(began)
	switch {
	case answer.err != nil && strings.Contains(answer.err.Error(), unableToFreeze):
		return "", 0, fmt.Errorf("%w: %w", engine.ErrBusy, answer.err)
	case answer.err != nil:
		return "", 0, answer.err
	case running:
		// An engine may go on when it could not freeze the container, and does not say so.
		if frozen, err = e.frozenSince(ctx, found.ID, since, lasted); err == nil && frozen == 0 {
			err = fmt.Errorf("%w: the engine could not freeze it", engine.ErrBusy)
		}
	default:
		err = e.checkStill(ctx, found.ID)
	}
	if err != nil {
		return "", 0, errors.Join(err, e.dropCommit(context.WithoutCancel(ctx), answer.id))
	}
	return answer.id, frozen, nil
}

// checkStill refuses the commit of a container that did not run before and runs now, as when the
// engine was still at the commit of a service that was killed, and has thawed it at the end of
// that.
func (e *Engine) checkStill(ctx context.Context, id string) error {
	found, err := e.inspectNow(ctx, id)
	if err == nil && fromInspect(found).Status == engine.StatusRunning {
		err = fmt.Errorf("%w: another process has thawed it meanwhile", engine.ErrBusy)
	}
	return err
}

// committed is the engine's answer to a commit: the id of an image, or an error.
type committed struct {
	id  string
	err error
}

// beginCommit asks the engine for a commit. The request does not end with ctx, for the engine would
// go on all the same, and nothing would say for how long the container is frozen.
func (e *Engine) beginCommit(ctx context.Context, container, name string, commits *sync.WaitGroup) <-chan committed {
	made := make(chan committed, 1)
	commits.Go(func() {
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		defer context.AfterFunc(e.closing, cancel)()
		var answer committed
		answer.err = e.callWithin(ctx, commitTimeout, "commit container "+container, meaning{notFound: engine.ErrNotFound}, func(ctx context.Context) error {
			image, err := e.api.ContainerCommit(ctx, container, commitOptions(name))
			answer.id = image.ID
			return err
		})
		made <- answer
	})
	return made
}

func commitOptions(name string) container.CommitOptions {
	return container.CommitOptions{Pause: true, Config: &container.Config{Labels: map[string]string{commitLabel: name}}}
}

// frozenSince returns how long the container was frozen by a commit that began after since and took
// no longer than lasted, by what the engine has reported; 0 if it was not.
func (e *Engine) frozenSince(ctx context.Context, id string, since time.Time, lasted time.Duration) (time.Duration, error) {
	until, err := e.now(ctx)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	messages, failed := e.api.Events(ctx, events.ListOptions{
		Since: since.Format(time.RFC3339Nano), Until: until.Format(time.RFC3339Nano),
		Filters: filters.NewArgs(
			filters.Arg("container", id), filters.Arg("event", string(events.ActionPause)), filters.Arg("event", string(events.ActionUnPause)),
		),
	})
	defer func() {
		cancel()
		for range failed { // closed when the client's goroutine has ended
		}
	}()
	var from int64
	for {
		select {
		case message := <-messages:
			switch {
			case message.Action == events.ActionPause:
				from = message.TimeNano
			case message.Action == events.ActionUnPause && from > 0:
				return max(1, time.Duration(message.TimeNano-from)), nil
			case message.Action == events.ActionUnPause: // the engine has forgotten the other one
				return lasted, nil
			}
		case err := <-failed:
			if errors.Is(err, io.EOF) { // the end of the window
				return 0, nil
			}
			return 0, explain("ask the engine for its events", err, forEngine)
		}
	}
}

// keep makes the snapshot of the image of a commit.
func (e *Engine) keep(ctx context.Context, k kept, parent image.InspectResponse, committed string, maxBytes int64) (engine.Snapshot, error) {
	found, err := e.inspectAnyImage(ctx, committed)
	if err != nil {
		return engine.Snapshot{}, err
	}
	layers, below := found.RootFS.Layers, len(parent.RootFS.Layers)
	if len(layers)-below > 1 || len(layers) < below || !slices.Equal(layers[:below], parent.RootFS.Layers) {
		return engine.Snapshot{}, fmt.Errorf("the commit has the %d layers of another image", len(layers))
	}
	if of, ok := keptIn(parent.RepoTags, labelsOf(parent)); ok {
		k.Layers = of.Layers
	}
	if len(layers) > below { // else the container has written nothing
		k.Bytes = max(0, found.Size-parent.Size)
		k.Layers = append(slices.Clone(k.Layers), keptLayer{chainOf(layers), k.Bytes})
	}
	others, err := e.listKept(ctx)
	if err != nil {
		return engine.Snapshot{}, err
	}
	taken := k.describe()
	for _, s := range describeAll(append(others, k)) {
		if s.Name == k.Name {
			taken = s
		}
	}
	if maxBytes > 0 && taken.Exclusive > maxBytes {
		return engine.Snapshot{}, fmt.Errorf("%w: it takes %d bytes, and may take %d", engine.ErrSnapshotTooLarge, taken.Exclusive, maxBytes)
	}
	label, err := encodeKept(k)
	if err == nil {
		_, err = e.loadLayers(ctx, snapshotRef(k.Name), layers, parent, k.Created, map[string]string{snapshotLabel: label})
	}
	if err != nil {
		return engine.Snapshot{}, errors.Join(err, e.removeSnapshot(context.WithoutCancel(ctx), k.Name))
	}
	failpoint.Hit(KeptFailpoint)
	return taken, nil
}

// dropCommit removes the image of a commit. Its layers stay while a snapshot has them.
func (e *Engine) dropCommit(ctx context.Context, id string) error {
	return e.call(ctx, "remove image "+id, forImageRemoval, func(ctx context.Context) error {
		_, err := e.api.ImageRemove(ctx, id, image.RemoveOptions{})
		if errdefs.IsNotFound(err) {
			return nil
		}
		return err
	})
}

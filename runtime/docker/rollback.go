package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/mount"

	"sandbox.internal/internal/failpoint"
	"sandbox.internal/runtime/engine"
)

// The engine cannot exchange the files of a container. So a rollback makes another container, with
// the same configuration, of the snapshot's image, and gives it the name. It is made under a name
// beside the other one, which is then removed, and renamed at last: whatever cuts that off, one of
// the two is there, and who asks for the name finds it.

const (
	// nextSuffix follows the name of a container in that of the one that takes its place.
	nextSuffix = ".sandbox-next"
	// replacesLabel is on containers that have taken the place of another one, and have its id.
	replacesLabel = ownPrefix + "replaces"
	// baseLabel is on every container: the id of the image of its spec.
	baseLabel = ownPrefix + "image"
	// joinLabel is on containers that join the network of another one, and has its name: the engine
	// keeps the id.
	joinLabel = ownPrefix + "joins"
	// mountsLabel is on every container: the mounts of its spec, in JSON.
	mountsLabel = ownPrefix + "mounts"
	// containerNetwork is the beginning of the network of these, in the engine's words.
	containerNetwork = "container:"
)

// ownLabels returns the labels of a container of the spec, this package's included. They hide
// what the labels of an image say under the same names.
func ownLabels(spec engine.ContainerSpec) (map[string]string, error) {
	mounts, err := json.Marshal(spec.Mounts)
	if err != nil {
		return nil, err
	}
	labels := maps.Clone(spec.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[baseLabel], labels[joinLabel], labels[replacesLabel], labels[mountsLabel] = spec.ImageID, spec.Join, "", string(mounts)
	if spec.Snapshot != "" {
		labels[snapshotLabel] = ""
	}
	return labels, nil
}

// baseOf returns the id of the image that a container's snapshots add to.
func baseOf(found container.InspectResponse) string {
	if found.Config != nil && found.Config.Labels[baseLabel] != "" {
		return found.Config.Labels[baseLabel]
	}
	return found.Image
}

// Rollback implements [engine.Snapshots]. The container has the same name then, another id, and a
// new log.
func (e *Engine) Rollback(ctx context.Context, id, name string) error {
	op := "roll back container " + id + " to snapshot " + name
	if err := e.CheckAbility(engine.AbilitySnapshots); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	found, err := e.inspect(ctx, id)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	unlock, err := e.locks.lock(ctx, found.ID, strings.TrimPrefix(found.Name, "/"))
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	defer unlock()
	if err := e.rollback(ctx, found.ID, name); err != nil {
		return fmt.Errorf("%s: %w", op, explainSnapshot(err))
	}
	return nil
}

func (e *Engine) rollback(ctx context.Context, id, name string) error {
	old, err := e.inspect(ctx, id)
	if err != nil {
		return err
	}
	status := fromInspect(old).Status
	if status == engine.StatusRemoving {
		return fmt.Errorf("%w: it is being removed", engine.ErrNotFound)
	}
	k, found, err := e.findSnapshot(ctx, name)
	switch {
	case err != nil:
		return err
	case k.Base != baseOf(old):
		return fmt.Errorf("%w: the snapshot is of the image %s", engine.ErrInvalid, k.Base)
	case status == engine.StatusStopped && old.Image == found.ID:
		return nil // it has the files, and has not run since
	}
	network := old.HostConfig.NetworkMode
	if network.IsContainer() {
		network = "none" // until it is started: the network that it joins is made again before
	}
	return e.replace(ctx, old, found.ID, network)
}

// replace puts a container of the image, and with the network, in the place of another one, which
// is removed.
func (e *Engine) replace(ctx context.Context, old container.InspectResponse, imageID string, network container.NetworkMode) error {
	if err := e.checkLabels(ctx, old); err != nil {
		return err
	}
	name := strings.TrimPrefix(old.Name, "/")
	next := name + nextSuffix
	if err := e.remove(ctx, next); err != nil { // of a call that was cut off
		return err
	}
	config, host := *old.Config, *old.HostConfig
	config.Image = imageID
	config.Labels = maps.Clone(config.Labels)
	config.Labels[baseLabel], config.Labels[replacesLabel] = baseOf(old), old.ID
	if host.NetworkMode = network; !network.IsBridge() {
		config.Hostname, config.Domainname = "", ""
	}
	mounts, err := mountsOf(old)
	if err != nil {
		return err
	}
	if host.Mounts, err = e.mountsAgain(ctx, old, mounts); err != nil {
		return err
	}
	made, err := e.create(ctx, next, &config, &host)
	if err != nil && strings.Contains(err.Error(), sourceMissing) && strings.Contains(err.Error(), shownVolume) {
		host.Mounts = host.Mounts[:len(mounts)] // without the files that show it its limits
		made, err = e.create(ctx, next, &config, &host)
	}
	if errors.Is(err, engine.ErrImage) {
		return fmt.Errorf("%w: the image of the snapshot was removed: %w", engine.ErrNoSnapshot, err)
	}
	if err == nil {
		err = e.checkTargets(ctx, made, imageID, mounts)
	}
	if err != nil {
		return errors.Join(err, e.remove(context.WithoutCancel(ctx), next))
	}
	failpoint.Hit(ReplacingFailpoint)
	if err := e.remove(ctx, old.ID); err != nil {
		return err
	}
	failpoint.Hit(RemovedFailpoint)
	return e.rename(ctx, made, name)
}

// rename gives a container the name that it is to have, unless another call has.
func (e *Engine) rename(ctx context.Context, id, name string) error {
	err := e.call(ctx, "rename container "+id, forContainer, func(ctx context.Context) error {
		return e.api.ContainerRename(ctx, id, name)
	})
	if err == nil || errors.Is(err, engine.ErrUnavailable) {
		return err
	}
	if found, again := e.inspectNow(ctx, name); again == nil && found.ID == id {
		return nil
	}
	return err
}

// finish gives the container that was to take the place of a missing one its name. It returns
// false when there is none.
func (e *Engine) finish(ctx context.Context, name string) (bool, error) {
	if isContainerID(name) || strings.HasSuffix(name, nextSuffix) {
		return false, nil
	}
	next, err := e.inspectNow(ctx, name+nextSuffix)
	switch {
	case errors.Is(err, engine.ErrNotFound):
		return false, nil
	case err != nil:
		return false, err
	case next.Config.Labels[replacesLabel] == "":
		return false, nil
	}
	return true, e.rename(ctx, next.ID, name)
}

// inspect returns what the engine has of a container, or of the one that is to take its place.
func (e *Engine) inspect(ctx context.Context, id string) (container.InspectResponse, error) {
	found, err := e.inspectNow(ctx, id)
	if err == nil && fromInspect(found).Status == engine.StatusRemoving {
		err = e.awaitReplaced(ctx, id, found.ID)
	}
	if !errors.Is(err, engine.ErrNotFound) {
		return found, err
	}
	finished, failed := e.finish(ctx, id)
	switch {
	case failed != nil && !errors.Is(failed, engine.ErrNotFound):
		return found, failed
	case finished:
		return e.inspectNow(ctx, id)
	}
	return found, err
}

// awaitReplaced waits until a container that is being removed is gone, if another one is to take
// its place, as after a rollback that was cut off: it returns [engine.ErrNotFound] then, and nil
// when there is no other one.
func (e *Engine) awaitReplaced(ctx context.Context, name, id string) error {
	if isContainerID(name) {
		return nil
	}
	next, err := e.inspectNow(ctx, name+nextSuffix)
	switch {
	case errors.Is(err, engine.ErrNotFound):
		return nil
	case err != nil:
		return err
	case next.Config.Labels[replacesLabel] != id:
		return nil
	}
	err = e.call(ctx, "await the removal of container "+id, forContainer, func(ctx context.Context) error { return e.waitRemoved(ctx, id) })
	if err == nil {
		err = engine.ErrNotFound
	}
	return err
}

func (e *Engine) inspectNow(ctx context.Context, id string) (found container.InspectResponse, err error) {
	err = e.call(ctx, "inspect container "+id, forContainer, func(ctx context.Context) (err error) {
		found, err = e.api.ContainerInspect(ctx, id)
		return err
	})
	return found, err
}

// isContainerID reports whether a container is given by its id and not by its name.
func isContainerID(id string) bool {
	return len(id) == 64 && strings.Trim(id, "0123456789abcdef") == ""
}

// settle gives the containers that are to take the places of missing ones their names.
func settle(list []engine.Container, summaries []container.Summary) {
	there := map[string]bool{}
	for _, c := range list {
		there[c.Name] = true
	}
	for i, c := range list {
		if name, next := strings.CutSuffix(c.Name, nextSuffix); next && summaries[i].Labels[replacesLabel] != "" && !there[name] {
			list[i].Name = name
		}
	}
}

// mountsOf are the mounts of the spec that the container was made by.
func mountsOf(found container.InspectResponse) (mounts []engine.Mount, err error) {
	label := found.Config.Labels[mountsLabel]
	if label == "" || json.Unmarshal([]byte(label), &mounts) != nil {
		return nil, errEarlier
	}
	return mounts, nil
}

// errEarlier is why a container of an earlier version of the service cannot be made again.
var errEarlier = fmt.Errorf("%w: an earlier version of the service has made the container, and not noted what it mounts", engine.ErrInvalid)

// checkLabels refuses a container whose labels may be those of its image, which come to containers
// of earlier versions: an image could say by them that its container mounts any path of the host.
func (e *Engine) checkLabels(ctx context.Context, found container.InspectResponse) error {
	if found.Config.Labels[baseLabel] == found.Image {
		return nil
	}
	of, err := e.inspectAnyImage(ctx, found.Image)
	if errors.Is(err, engine.ErrImage) {
		return fmt.Errorf("%w: the image of the container was removed", engine.ErrInvalid)
	}
	if err != nil {
		return err
	}
	if !labelled(found, of) {
		return errEarlier
	}
	return nil
}

// labelled reports whether a container, made of the image, has the labels of this version. It has
// the id of its image there, or of that which a snapshot adds to: no image can have the first in
// its own labels, and none but those of snapshots the second.
func labelled(found container.InspectResponse, of image.InspectResponse) bool {
	base := found.Config.Labels[baseLabel]
	k, isSnapshot := keptIn(of.RepoTags, labelsOf(of))
	return base == found.Image || isSnapshot && k.Base == base
}

// mountsAgain returns the mounts of a container that is made or started again: a link may have come
// to a directory of a volume since. The files that show the container its limits stay.
func (e *Engine) mountsAgain(ctx context.Context, found container.InspectResponse, wanted []engine.Mount) ([]mount.Mount, error) {
	mounts, err := e.mounts(ctx, wanted)
	for _, m := range found.HostConfig.Mounts {
		own := slices.ContainsFunc(wanted, func(w engine.Mount) bool { return w.Target == m.Target })
		if isKernels(m.Target) && !own {
			mounts = append(mounts, m)
		}
	}
	return mounts, err
}

// made are the containers that this process has made and not started, by id and by name.
type made struct {
	mu    sync.Mutex
	other map[string]string // the one's other word
}

func (m *made) add(id, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.other[id], m.other[name] = name, id
}

// take reports whether the container is one of them, and forgets it.
func (m *made) take(container string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	other, known := m.other[container]
	delete(m.other, container)
	delete(m.other, other)
	return known
}

// prepareAgain prepares a container that this process has not made for its start. It connects one
// that was rolled back to the network that it joins, if that has been made again; one that has run
// cannot be connected to another one.
func (e *Engine) prepareAgain(ctx context.Context, id string) error {
	found, err := e.inspect(ctx, id)
	if err != nil {
		return err
	}
	c := fromInspect(found)
	if c.Status == engine.StatusRunning || c.Status == engine.StatusFrozen {
		return nil
	}
	if mounts, err := mountsOf(found); err == nil { // of an earlier version there is none that starts again
		if _, err := e.mounts(ctx, mounts); err != nil {
			return fmt.Errorf("start container %s: %w", id, err)
		}
		if err := e.checkTargets(ctx, id, "", mounts); err != nil { // what has run in it may have put links there
			return fmt.Errorf("start container %s: %w", id, err)
		}
	}
	join := found.Config.Labels[joinLabel]
	if join == "" {
		return nil
	}
	owner, err := e.inspectNow(ctx, join)
	if errors.Is(err, engine.ErrNotFound) {
		return fmt.Errorf("start container %s: %w: container %s, whose network it joins, is missing", id, engine.ErrNetwork, join)
	}
	if err != nil {
		return err
	}
	network := container.NetworkMode(containerNetwork + owner.ID)
	if now := found.HostConfig.NetworkMode; now == network || now == container.NetworkMode(containerNetwork+join) {
		return nil
	}
	if c.Status != engine.StatusStopped && c.Status != engine.StatusCreated {
		return fmt.Errorf("start container %s: %w: the network in which it has run is gone, and Docker connects it to no other", id, engine.ErrNetwork)
	}
	if err := e.replace(ctx, found, found.Image, network); err != nil {
		return fmt.Errorf("start container %s: connect it to the network of container %s: %w", id, join, err)
	}
	return nil
}

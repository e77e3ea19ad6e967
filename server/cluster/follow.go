package cluster

import (
	"context"
	"errors"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/lifecycle"
)

// watchTimeout is how long one watch lasts, unless the server ends it before; the next one goes on where it stopped.
const watchTimeout = int64(300)

// watchSilence is how long a watch may bring nothing, bookmarks included, before its connection counts as lost.
const watchSilence = 5*time.Minute + 30*time.Second

// ours selects the BatchSandboxes that are sandboxes of the service.
func (c *Cluster) ours() []client.ListOption {
	return []client.ListOption{client.InNamespace(c.Namespace), client.MatchingLabels{labelManagedBy: managedBy}}
}

// list makes the table hold what there is, and returns the version as of which it does. What happened before that, this replica cannot
// tell those who follow events.
func (c *Cluster) list(ctx context.Context) (version string, err error) {
	var batches v1alpha1.BatchSandboxList
	if err := c.api.List(ctx, &batches, c.ours()...); err != nil {
		return "", err
	}
	listed := make(map[string]*entry, len(batches.Items))
	for i := range batches.Items {
		e, err := newEntry(&batches.Items[i])
		if err != nil {
			c.Logger.Warn().Err(err).Msg("a BatchSandbox with the service's label is no sandbox of it")
			continue
		}
		listed[e.sandbox.ID] = e
		c.table.put(e)
	}
	as := versionOf(batches.ResourceVersion)
	c.table.keep(listed, as, c.Clock())
	c.feeds.begin(as, listed)
	routes := make([]Route, 0, len(listed))
	for _, e := range listed {
		routes = append(routes, routeOf(e))
		c.shorten(e)
	}
	c.routes.Replace(routes)
	return batches.ResourceVersion, nil
}

// follow keeps the table as the watch says, until Close.
func (c *Cluster) follow(version string) {
	const shortest, longest = 100 * time.Millisecond, 5 * time.Second
	for pause := shortest; c.ctx.Err() == nil; {
		last, err := c.watch(version)
		if last != version {
			version, pause = last, shortest
		}
		if c.ctx.Err() != nil {
			return
		}
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			c.Logger.Warn().Msg("the watch of BatchSandboxes was away for too long; all of them are read again, and those who follow events start anew")
			fresh, listErr := c.list(c.ctx)
			if listErr == nil {
				version = fresh
				continue
			}
			err = listErr
		}
		if err == nil {
			continue // its time was up
		}
		c.Logger.Warn().Err(err).Dur("retry_in", pause).Msg("the watch of BatchSandboxes is lost; what is shown may be old until it is back")
		sleep(c.ctx, pause)
		pause = min(2*pause, longest)
	}
}

// watch follows the sandboxes from a version on, and returns the last version that it saw.
func (c *Cluster) watch(version string) (last string, err error) {
	ctx, cancel := context.WithCancelCause(c.ctx)
	defer cancel(nil)
	timeout := watchTimeout
	watcher, err := c.api.Watch(ctx, &v1alpha1.BatchSandboxList{}, append(c.ours(), &client.ListOptions{
		Raw: &metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true, TimeoutSeconds: &timeout},
	})...)
	if err != nil {
		return version, err
	}
	defer watcher.Stop()
	silent := time.AfterFunc(watchSilence, func() { cancel(errors.New("nothing was heard from the API server")) })
	defer silent.Stop()
	for {
		select {
		case event, open := <-watcher.ResultChan():
			if !open {
				return version, context.Cause(ctx)
			}
			silent.Reset(watchSilence)
			if event.Type == watch.Error {
				return version, apierrors.FromObject(event.Object)
			}
			batch, ok := event.Object.(*v1alpha1.BatchSandbox)
			if !ok {
				continue
			}
			version = batch.ResourceVersion
			c.take(event.Type, batch)
		case <-ctx.Done():
			return version, context.Cause(ctx)
		}
	}
}

// shorten lets the record of a sandbox that failed while it was Pending be forgotten when PendingFailureTTL says. The resource has one
// retention, which is that of all other ends until this one is known. Every replica may do it, and one does.
func (c *Cluster) shorten(e *entry) {
	ttl := int32(c.PendingFailureTTL / time.Second)
	keeps := func(b *v1alpha1.BatchSandbox) bool {
		return b.Spec.TTLSecondsAfterFinished != nil && *b.Spec.TTLSecondsAfterFinished == ttl
	}
	if !failedPending(e.batch) || keeps(e.batch) {
		return
	}
	c.tasks.Go(func() {
		_, err := c.change(c.ctx, e.sandbox.ID, func(_ *entry, b *v1alpha1.BatchSandbox) (bool, error) {
			b.Spec.TTLSecondsAfterFinished = &ttl
			return true, nil
		})
		var known *lifecycle.Error
		if err != nil && c.ctx.Err() == nil && !(errors.As(err, &known) && known.Kind == lifecycle.KindNotFound) {
			c.Logger.Warn().Err(err).Str("sandbox_id", e.sandbox.ID).Msg("the record of a sandbox that failed while Pending stays for longer than it should")
		}
	})
}

// failedPending reports whether a sandbox has failed without ever having been Running.
func failedPending(b *v1alpha1.BatchSandbox) bool {
	return b.Status.Phase == v1alpha1.PhaseFailed && b.DeletionTimestamp == nil &&
		!slices.ContainsFunc(b.Status.History, func(change v1alpha1.PhaseChange) bool { return change.Phase == v1alpha1.PhaseRunning })
}

// take brings the table and the events up to one version of one sandbox.
func (c *Cluster) take(kind watch.EventType, batch *v1alpha1.BatchSandbox) {
	if kind == watch.Bookmark {
		c.feeds.advance(versionOf(batch.ResourceVersion))
		return
	}
	e, err := newEntry(batch)
	if err != nil {
		c.Logger.Warn().Err(err).Msg("a BatchSandbox with the service's label is no sandbox of it")
		return
	}
	// The table first: who hears of an event and asks must not be told less.
	if kind == watch.Deleted {
		c.table.remove(e.sandbox.ID, e.version, c.Clock())
		c.routes.Forget(e.sandbox.ID)
	} else {
		c.table.put(e)
		c.routes.Update(routeOf(e))
		c.shorten(e)
	}
	for _, event := range c.feeds.take(e, kind == watch.Deleted, c.Clock()) {
		if event.Type != lifecycle.EventState {
			continue
		}
		c.Observer.StateChanged(event.To, event.Reason)
		if event.To == lifecycle.StateRunning && event.From == lifecycle.StatePending {
			c.Observer.Provisioned(event.Time.Sub(e.sandbox.CreatedAt))
		}
	}
}

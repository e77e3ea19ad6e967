package cluster

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rs/zerolog"
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

// ours selects the BatchSandboxes of a namespace that are sandboxes of the service.
func ours(namespace string) []client.ListOption {
	return []client.ListOption{client.InNamespace(namespace), client.MatchingLabels{labelManagedBy: managedBy}}
}

// reader is what following needs of the API server.
type reader interface {
	List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error
	Watch(ctx context.Context, list client.ObjectList, options ...client.ListOption) (watch.Interface, error)
}

// follower reports the sandboxes of a namespace as the API server has them. It only reads: what is to be done about a sandbox is the sink's.
type follower struct {
	api       reader
	namespace string
	logger    zerolog.Logger
	sink      sink
}

// sink takes what a follower reads, from one goroutine.
type sink interface {
	// replace takes all sandboxes that there are as of a version, by id.
	replace(listed map[string]*entry, version uint64)
	// take takes a version of one sandbox; deleted means that it is the last one.
	take(e *entry, deleted bool)
	// advance takes the news that nothing happened up to a version.
	advance(version uint64)
}

// list hands over what there is, and returns the version as of which it is.
func (f *follower) list(ctx context.Context) (version string, err error) {
	var batches v1alpha1.BatchSandboxList
	if err := f.api.List(ctx, &batches, ours(f.namespace)...); err != nil {
		return "", err
	}
	listed := make(map[string]*entry, len(batches.Items))
	for i := range batches.Items {
		e, err := newEntry(&batches.Items[i])
		if err != nil {
			f.logger.Warn().Err(err).Msg("a BatchSandbox with the service's label is no sandbox of it")
			continue
		}
		listed[e.sandbox.ID] = e
	}
	f.sink.replace(listed, versionOf(batches.ResourceVersion))
	return batches.ResourceVersion, nil
}

// follow hands over what the watch says, from a version on, until ctx ends.
func (f *follower) follow(ctx context.Context, version string) {
	const shortest, longest = 100 * time.Millisecond, 5 * time.Second
	for pause := shortest; ctx.Err() == nil; {
		last, err := f.watch(ctx, version)
		if last != version {
			version, pause = last, shortest
		}
		if ctx.Err() != nil {
			return
		}
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			f.logger.Warn().Msg("the watch of BatchSandboxes was away for too long; all of them are read again, and those who follow events start again")
			fresh, listErr := f.list(ctx)
			if listErr == nil {
				version = fresh
				continue
			}
			err = listErr
		}
		if err == nil {
			continue // its time was up
		}
		f.logger.Warn().Err(err).Dur("retry_in", pause).Msg("the watch of BatchSandboxes is lost; what is shown may be old until it is back")
		sleep(ctx, pause)
		pause = min(2*pause, longest)
	}
}

// watch follows the sandboxes from a version on, and returns the last version that it saw.
func (f *follower) watch(ctx context.Context, version string) (last string, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timeout := watchTimeout
	watcher, err := f.api.Watch(ctx, &v1alpha1.BatchSandboxList{}, append(ours(f.namespace), &client.ListOptions{
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
			f.take(event.Type, batch)
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

// take hands over one version of one sandbox.
func (f *follower) take(kind watch.EventType, batch *v1alpha1.BatchSandbox) {
	if kind == watch.Bookmark {
		f.sink.advance(versionOf(batch.ResourceVersion))
		return
	}
	e, err := newEntry(batch)
	if err != nil {
		f.logger.Warn().Err(err).Msg("a BatchSandbox with the service's label is no sandbox of it")
		return
	}
	f.sink.take(e, kind == watch.Deleted)
}

// replace makes the table hold what there is. What happened before that, this replica cannot tell those who follow events.
func (c *Cluster) replace(listed map[string]*entry, version uint64) {
	for _, e := range listed {
		c.table.put(e)
	}
	c.table.keep(listed, version, c.Clock())
	c.feeds.begin(version, listed)
	for _, e := range listed {
		c.shorten(e)
	}
}

func (c *Cluster) advance(version uint64) { c.feeds.advance(version) }

// take brings the table and the events up to one version of one sandbox.
func (c *Cluster) take(e *entry, deleted bool) {
	// The table first: who hears of an event and asks must not be told less.
	if deleted {
		c.table.remove(e.sandbox.ID, e.version, c.Clock())
	} else {
		c.table.put(e)
		c.shorten(e)
	}
	for _, event := range c.feeds.take(e, deleted, c.Clock()) {
		if event.Type != lifecycle.EventState {
			continue
		}
		c.Observer.StateChanged(event.To, event.Reason)
		if event.To == lifecycle.StateRunning && event.From == lifecycle.StatePending {
			c.Observer.Provisioned(event.Time.Sub(e.sandbox.CreatedAt))
		}
	}
}

package view

import (
	"context"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/rs/zerolog"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
)

const (
	// pageSize is how many resources one answer of a list has at most, so that only so many are in
	// memory as the API server has them.
	pageSize = 500
	// firstPause and longestPause bound the pauses between attempts to reach the API server.
	firstPause, longestPause = 100 * time.Millisecond, 5 * time.Second
	// brokenWatch is how long a watch whose connection breaks is begun again at once, where it
	// stopped; then the list is read.
	brokenWatch = time.Second
)

// ours selects the BatchSandboxes of a namespace that are sandboxes of the service.
func ours(namespace string) []client.ListOption {
	return []client.ListOption{client.InNamespace(namespace), client.MatchingLabels{LabelManagedBy: ManagedBy}}
}

// sink takes what a follower reads, from one goroutine.
type sink interface {
	// replace takes all sandboxes that there are as of a version, by id.
	replace(listed map[string]*Entry, version uint64)
	// take takes a version of one sandbox; deleted means that it is the last one.
	take(e *Entry, deleted bool)
	// advance reports that nothing happened up to a version.
	advance(version uint64)
}

// follower hands a sink the sandboxes of a namespace as the API server has them. It is the store
// and the source of a Reflector, which lists and watches.
type follower struct {
	api       Reader
	namespace string
	logger    zerolog.Logger
	sink      sink
	listed    func(err error) // called after each list: nil, or why it failed
	before    bool            // there was a list
}

// run follows until ctx ends.
func (f *follower) run(ctx context.Context) {
	// The Reflector logs through klog. What is not logged here is rare, and a warning.
	ctx = klog.NewContext(ctx, funcr.New(func(_, text string) {
		f.logger.Warn().Str("detail", text).Msg("the watch of BatchSandboxes reported a warning")
	}, funcr.Options{}))
	reflector := cache.NewReflectorWithOptions(f, &v1alpha1.BatchSandbox{}, f, cache.ReflectorOptions{
		Name:    "batchsandboxes",
		Backoff: &wait.Backoff{Duration: firstPause, Cap: longestPause, Factor: 2, Jitter: 0.1, Steps: 10},
	})
	reflector.WatchListPageSize = pageSize
	reflector.MaxInternalErrorRetryDuration = brokenWatch
	reflector.RunWithContext(ctx)
}

// IsWatchListSemanticsUnSupported makes the Reflector list before it watches: it would keep the
// initial events of a stream as the API server has them until the last one, and would try again
// without reporting why the first request failed.
func (*follower) IsWatchListSemanticsUnSupported() bool { return true }

// List implements cache.ListerWatcher.
func (f *follower) List(options metav1.ListOptions) (runtime.Object, error) {
	return f.ListWithContext(context.Background(), options)
}

// ListWithContext implements cache.ListerWatcherWithContext: it reads one page of the list.
func (f *follower) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	// The newest version, whichever the Reflector asks for: an API server's cache may be older than
	// what clients have been answered.
	from := &client.ListOptions{Limit: options.Limit, Continue: options.Continue}
	var page v1alpha1.BatchSandboxList
	if err := f.api.List(ctx, &page, append(ours(f.namespace), from)...); err != nil {
		if ctx.Err() == nil && !apierrors.IsResourceExpired(err) { // of an expired page the Reflector reads the list as a whole
			f.logger.Warn().Err(err).Msg("cannot list the cluster's BatchSandboxes")
			f.listed(err)
		}
		return nil, err
	}
	for i := range page.Items {
		trim(&page.Items[i])
	}
	return &page, nil
}

// Watch implements cache.ListerWatcher.
func (f *follower) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return f.WatchWithContext(context.Background(), options)
}

// WatchWithContext implements cache.ListerWatcherWithContext.
func (f *follower) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	watcher, err := f.api.Watch(ctx, &v1alpha1.BatchSandboxList{}, append(ours(f.namespace), &client.ListOptions{Raw: &options})...)
	if err == nil || ctx.Err() != nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return watcher, err
	}
	f.logger.Warn().Err(err).Msg("watch of BatchSandboxes lost; responses may be outdated until it is back")
	// After this error the Reflector tries the same version again. After most others it would list,
	// and events would be missed.
	return nil, apierrors.NewTooManyRequests(err.Error(), 0)
}

// Replace implements cache.ReflectorStore.
func (f *follower) Replace(items []any, version string) error {
	if f.before {
		f.logger.Warn().Msg("watch of BatchSandboxes interrupted for too long; reading all of them again, feeds of events begin again")
	}
	f.before = true
	listed := make(map[string]*Entry, len(items))
	for _, item := range items {
		if e := f.entry(item); e != nil {
			listed[e.Sandbox.ID] = e
		}
	}
	f.sink.replace(listed, versionOf(version))
	f.listed(nil)
	return nil
}

// Add implements cache.ReflectorStore.
func (f *follower) Add(item any) error { return f.take(item, false) }

// Update implements cache.ReflectorStore.
func (f *follower) Update(item any) error { return f.take(item, false) }

// Delete implements cache.ReflectorStore. The item has the version of the deletion.
func (f *follower) Delete(item any) error { return f.take(item, true) }

// Resync implements cache.ReflectorStore.
func (f *follower) Resync() error { return nil }

// Bookmark implements cache.ReflectorBookmarkStore.
func (f *follower) Bookmark(version string) error {
	f.sink.advance(versionOf(version))
	return nil
}

func (f *follower) take(item any, deleted bool) error {
	if e := f.entry(item); e != nil {
		f.sink.take(e, deleted)
	}
	return nil
}

// entry reads a resource, which the Reflector has checked the type of. It returns nil for one that
// is not a sandbox of the service.
func (f *follower) entry(item any) *Entry {
	e, err := NewEntry(item.(*v1alpha1.BatchSandbox))
	if err != nil {
		f.logger.Warn().Err(err).Msg("ignored a BatchSandbox with the service's label that is not one of its sandboxes")
		return nil
	}
	return e
}

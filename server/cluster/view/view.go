// Package view is the read model of a cluster: what the BatchSandboxes of a namespace say about the
// sandboxes of the service. It reads the API server and never writes to it.
//
// The service's backend reads a [View], which adds the answers to the backend's own writes; an
// ingress follows the routes alone ([FollowRoutes]). Both are fed by one client-go Reflector.
package view

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/lifecycle"
)

// startTimeout is how long the API server has to answer at the start.
const startTimeout = 30 * time.Second

// Reader is what the read model uses of a client.
type Reader interface {
	Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error
	List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error
	Watch(ctx context.Context, list client.ObjectList, options ...client.ListOption) (watch.Interface, error)
}

// Options configures a View.
type Options struct {
	API       Reader
	Namespace string
	// Changed is called with what the watch brings: a version of a sandbox that the view has by
	// then, and the events that it shows. It is called without events for each sandbox of a list.
	// Deleted means that it was the last version. It is called from one goroutine, and must be
	// quick.
	Changed func(e *Entry, events []lifecycle.Event, deleted bool)
	Clock   func() time.Time
	Logger  zerolog.Logger
}

// View is the state of a namespace's sandboxes: what the watch brought, and what the backend
// learned from the answers to its own writes and reads, which the watch brings later.
type View struct {
	Options
	table *table
	feeds *journal

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	tasks  sync.WaitGroup
}

// New returns an empty View.
func New(options Options) *View {
	v := &View{Options: options, table: newTable(), feeds: newJournal()}
	v.ctx, v.cancel = context.WithCancel(context.Background())
	return v
}

// Start reads the sandboxes that there are, and follows them until Close. It returns an error when
// the API server does not answer within 30 s, does not have the resources, or does not let the
// service read them.
func (v *View) Start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	first := make(chan error, 1)
	f := &follower{api: v.API, namespace: v.Namespace, logger: v.Logger, sink: v, listed: func(err error) {
		select {
		case first <- err:
		default: // only the first one decides
		}
	}}
	v.tasks.Go(func() { f.run(v.ctx) })
	var err error
	select {
	case err = <-first:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("read the BatchSandboxes of namespace %s: %w", v.Namespace, err)
	}
	return nil
}

// Close stops following, and ends feeds and what waits.
func (v *View) Close() {
	v.cancel()
	v.tasks.Wait()
}

// All returns every sandbox, newest first, ties by id.
func (v *View) All() []*Entry { return v.table.all() }

// List returns a page of the sandboxes that a filter accepts, newest first, ties by id, and how
// many it accepts.
func (v *View) List(filter lifecycle.Filter, page lifecycle.Page) (items []*Entry, total int) {
	return v.table.list(&filter, page)
}

// Count returns how many sandboxes there are in each state that any is in.
func (v *View) Count() map[lifecycle.State]int { return v.table.count(allOwners) }

// Living returns how many sandboxes there are that have not ended, and how many of an owner. It
// implements lifecycle.Living.
func (v *View) Living(owner string) (total, own int) {
	living := func(count map[lifecycle.State]int) (n int) {
		for state, of := range count {
			if !state.Final() {
				n += of
			}
		}
		return n
	}
	return living(v.table.count(allOwners)), living(v.table.count(owner))
}

// Lives reports whether there is a sandbox that has not ended, and whose it is. It implements
// lifecycle.Living.
func (v *View) Lives(id string) (owner string, lives bool) {
	e := v.table.get(id)
	if e == nil || e.Sandbox.Status.State.Final() {
		return "", false
	}
	return e.Sandbox.Owner, true
}

// Find returns a sandbox. A sandbox that the view lacks may have been created at another replica a
// moment ago, so the API server is asked before it counts as missing. It returns KindNotFound.
func (v *View) Find(ctx context.Context, id string) (*Entry, error) {
	if !isID(id) {
		return nil, lifecycle.NotFound(id)
	}
	if e := v.table.get(id); e != nil {
		return e, nil
	}
	return v.Fetch(ctx, id)
}

// Fetch asks the API server for a sandbox. It returns KindNotFound.
func (v *View) Fetch(ctx context.Context, id string) (*Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	var batch v1alpha1.BatchSandbox
	err := v.API.Get(ctx, client.ObjectKey{Namespace: v.Namespace, Name: id}, &batch)
	if apierrors.IsNotFound(err) || err == nil && batch.Labels[LabelManagedBy] != ManagedBy {
		return nil, lifecycle.NotFound(id)
	}
	if err != nil {
		return nil, Explain(err)
	}
	return v.Learn(&batch)
}

// Put adds a version that the API server answered with, so that a client reads its own write, and
// returns the newest version that the view has of the sandbox: nil when it was removed since.
func (v *View) Put(e *Entry) *Entry { return v.table.put(e) }

// Learn is NewEntry and Put. It returns KindNotFound when the sandbox was removed since.
func (v *View) Learn(batch *v1alpha1.BatchSandbox) (*Entry, error) {
	e, err := NewEntry(batch)
	if err != nil {
		return nil, err
	}
	if e = v.Put(e); e == nil {
		return nil, lifecycle.NotFound(batch.Name)
	}
	return e, nil
}

// Await returns when done accepts the sandbox, it is removed, the time is up, ctx ends or the view
// is closed: the version that was seen last.
func (v *View) Await(ctx context.Context, e *Entry, atMost time.Duration, done func(*Entry) bool) *Entry {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(v.ctx, cancel)()
	return v.table.await(ctx, e, atMost, done)
}

// AwaitVersion returns when the watch has brought every version up to this one, which is that of a
// sandbox, ctx ends or the view is closed.
func (v *View) AwaitVersion(ctx context.Context, version uint64) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(v.ctx, cancel)()
	for {
		there, more := v.feeds.reached(version)
		if there {
			return
		}
		select {
		case <-more:
		case <-ctx.Done():
			return
		}
	}
}

// latest asks the API server for the version that it has reached.
func (v *View) latest(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	var list v1alpha1.BatchSandboxList
	if err := v.API.List(ctx, &list, append(ours(v.Namespace), client.Limit(1))...); err != nil {
		return 0, Explain(err)
	}
	return versionOf(list.ResourceVersion), nil
}

// Tokens returns what a sandbox's execd and its sidecar demand. The sidecar's is empty when there
// is none.
func (v *View) Tokens(ctx context.Context, e *Entry) (execd, sidecar string, err error) {
	return e.tokens.read(ctx, v.API, e.Batch)
}

// replace makes the table hold what there is. The events before that are unknown to this replica.
func (v *View) replace(listed map[string]*Entry, version uint64) {
	for _, e := range listed {
		v.table.put(e)
	}
	v.table.keep(listed, version, v.Clock())
	v.feeds.begin(version, listed)
	// In the order in which they ended.
	for _, e := range slices.SortedFunc(maps.Values(listed), func(a, b *Entry) int {
		return a.Sandbox.Status.LastTransitionAt.Compare(b.Sandbox.Status.LastTransitionAt)
	}) {
		v.Changed(e, nil, false)
	}
}

// take brings the table and the events up to one version of one sandbox.
func (v *View) take(e *Entry, deleted bool) {
	// The table first: a client that reads after an event must not see an older state.
	if deleted {
		v.table.remove(e.Sandbox.ID, e.Version, v.Clock())
	} else {
		v.table.put(e)
	}
	v.Changed(e, v.feeds.take(e, deleted, v.Clock()), deleted)
}

func (v *View) advance(version uint64) { v.feeds.advance(version) }

// isID reports whether the text has the form of our ids. Anything else would be asked of the API
// server as the name of a resource.
func isID(id string) bool {
	if len(id) != 36 {
		return false
	}
	for i, char := range []byte(id) {
		switch i {
		case 8, 13, 18, 23:
			if char != '-' {
				return false
			}
		default:
			if (char < '0' || char > '9') && (char < 'a' || char > 'f') {
				return false
			}
		}
	}
	return true
}

package cluster

import (
	"context"
	"maps"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/lifecycle"
)

// maxConflicts is how often a change is tried again that somebody else was faster than.
const maxConflicts = 20

// call makes a call of the API server that is bounded, and explains its error.
func (c *Cluster) call(ctx context.Context, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return explain(do(ctx))
}

// fetch asks the API server for a sandbox.
func (c *Cluster) fetch(ctx context.Context, id string) (*entry, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var batch v1alpha1.BatchSandbox
	err := c.api.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: id}, &batch)
	if apierrors.IsNotFound(err) || err == nil && batch.Labels[labelManagedBy] != managedBy {
		return nil, lifecycle.NotFound(id)
	}
	if err != nil {
		return nil, explain(err)
	}
	return c.learn(&batch)
}

// learn takes up what the API server answered, and returns the newest that is known.
func (c *Cluster) learn(batch *v1alpha1.BatchSandbox) (*entry, error) {
	e, err := newEntry(batch)
	if err != nil {
		return nil, err
	}
	if e = c.table.put(e); e == nil {
		return nil, lifecycle.NotFound(batch.Name)
	}
	return e, nil
}

// find returns a sandbox. One that is not known here may have been created at another replica a moment ago, so the API server is asked
// before it counts as missing.
func (c *Cluster) find(ctx context.Context, id string) (*entry, error) {
	if !isID(id) {
		return nil, lifecycle.NotFound(id)
	}
	if e, _ := c.table.get(id); e != nil {
		return e, nil
	}
	return c.fetch(ctx, id)
}

// change changes a sandbox's resource, on the newest version that is known or else on what the API server has: edit is called again when
// somebody else was faster. It returns errors of edit as they are, and without a write when edit reports that there is nothing to do.
func (c *Cluster) change(ctx context.Context, id string, edit func(e *entry, b *v1alpha1.BatchSandbox) (write bool, err error)) (*entry, error) {
	e, err := c.find(ctx, id)
	for attempt := 0; ; attempt++ {
		if err != nil {
			return nil, err
		}
		b := e.batch.DeepCopy()
		if b.Annotations == nil {
			b.Annotations = make(map[string]string)
		}
		write, refused := edit(e, b)
		if refused != nil && attempt == 0 {
			// What is known here may be old: only the API server's word refuses a client.
			e, err = c.fetch(ctx, id)
			continue
		}
		if refused != nil || !write {
			return e, refused
		}
		b.Annotations[annotationTouched] = c.Clock().UTC().Format(time.RFC3339Nano)
		if err := checkSize(b); err != nil {
			return nil, err
		}
		err = c.patch(ctx, b, e.batch)
		switch {
		case err == nil:
			return c.learn(b)
		case apierrors.IsNotFound(err):
			return nil, lifecycle.NotFound(id)
		case !apierrors.IsConflict(err) || attempt == maxConflicts:
			return nil, explain(err)
		}
		e, err = c.fetch(ctx, id)
	}
}

// patch sends the difference, which the API server refuses when the resource has another version by now.
func (c *Cluster) patch(ctx context.Context, b, before *v1alpha1.BatchSandbox) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return c.api.Patch(ctx, b, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// Get implements lifecycle.Backend.
func (c *Cluster) Get(ctx context.Context, id string) (lifecycle.Sandbox, error) {
	e, err := c.find(ctx, id)
	if err != nil {
		return lifecycle.Sandbox{}, err
	}
	return e.sandbox, nil
}

// List implements lifecycle.Backend.
func (c *Cluster) List(_ context.Context, filter lifecycle.Filter, page lifecycle.Page) (lifecycle.Listing, error) {
	if err := page.Validate(); err != nil {
		return lifecycle.Listing{}, err
	}
	listing := lifecycle.Listing{Items: []lifecycle.Sandbox{}}
	for _, e := range c.table.all() {
		if !filter.Match(&e.sandbox) {
			continue
		}
		if listing.Total/page.Size == page.Number-1 {
			listing.Items = append(listing.Items, e.sandbox)
		}
		listing.Total++
	}
	return listing, nil
}

// Delete implements lifecycle.Backend.
func (c *Cluster) Delete(ctx context.Context, id string) error {
	_, err := c.change(ctx, id, func(e *entry, b *v1alpha1.BatchSandbox) (bool, error) {
		switch state := e.sandbox.Status.State; {
		case state == lifecycle.StateStopping:
			return false, nil
		case state.Final():
			return false, lifecycle.Conflictf("cannot delete: the sandbox is %s already; its record is kept for %v after its end", state, c.TerminatedRetention)
		}
		b.Annotations[v1alpha1.AnnotationStop] = string(lifecycle.ReasonUserDelete)
		b.Annotations[annotationAsked] = c.Clock().UTC().Format(time.RFC3339Nano)
		return true, nil
	})
	return err
}

// Pause implements lifecycle.Backend.
func (c *Cluster) Pause(ctx context.Context, id string) error {
	return c.toggle(ctx, id, "pause", lifecycle.StateRunning, true)
}

// Resume implements lifecycle.Backend.
func (c *Cluster) Resume(ctx context.Context, id string) error {
	return c.toggle(ctx, id, "resume", lifecycle.StatePaused, false)
}

func (c *Cluster) toggle(ctx context.Context, id, action string, from lifecycle.State, pause bool) error {
	e, err := c.change(ctx, id, func(e *entry, b *v1alpha1.BatchSandbox) (bool, error) {
		if state := e.sandbox.Status.State; state != from {
			return false, state.Forbidden(action, from)
		}
		b.Spec.Pause = pause
		b.Annotations[annotationAsked] = c.Clock().UTC().Format(time.RFC3339Nano)
		return true, nil
	})
	if err != nil {
		return err
	}
	c.await(ctx, e, settleTimeout, func(e *entry) bool { return !e.sandbox.Status.State.Transient() })
	return nil
}

// Renew implements lifecycle.Backend.
func (c *Cluster) Renew(ctx context.Context, id string, expiresAt time.Time) (time.Time, error) {
	expiresAt = expiresAt.UTC()
	_, err := c.change(ctx, id, func(e *entry, b *v1alpha1.BatchSandbox) (bool, error) {
		if state := e.sandbox.Status.State; state.Final() || state == lifecycle.StateStopping {
			return false, state.Forbidden("renew", lifecycle.StatePending, lifecycle.StateRunning, lifecycle.StatePausing, lifecycle.StatePaused, lifecycle.StateResuming)
		}
		if err := lifecycle.CheckRenewal(c.Clock(), e.sandbox.ExpiresAt, expiresAt); err != nil {
			return false, err
		}
		setExpiry(b, expiresAt)
		return true, nil
	})
	return expiresAt, err
}

// UpdateMetadata implements lifecycle.Backend.
func (c *Cluster) UpdateMetadata(ctx context.Context, id string, patch map[string]*string) (map[string]string, error) {
	e, err := c.change(ctx, id, func(e *entry, b *v1alpha1.BatchSandbox) (bool, error) {
		if state := e.sandbox.Status.State; state.Final() {
			return false, lifecycle.Conflictf("cannot change the metadata: the sandbox is %s", state)
		}
		merged, err := lifecycle.MergeMetadata(e.sandbox.Metadata, patch)
		if err != nil || maps.Equal(merged, e.sandbox.Metadata) {
			return false, err
		}
		return true, annotate(b, annotationMetadata, merged)
	})
	if err != nil {
		return nil, err
	}
	merged := maps.Clone(e.sandbox.Metadata)
	if merged == nil {
		merged = map[string]string{}
	}
	return merged, nil
}

// Settle implements lifecycle.Backend.
func (c *Cluster) Settle(ctx context.Context, id string, atMost time.Duration) (lifecycle.Sandbox, error) {
	e, err := c.find(ctx, id)
	if err != nil {
		return lifecycle.Sandbox{}, err
	}
	return c.await(ctx, e, atMost, func(e *entry) bool { return !e.sandbox.Status.State.Transient() }).sandbox, nil
}

// await is table.await that ends with the cluster, too.
func (c *Cluster) await(ctx context.Context, e *entry, atMost time.Duration, done func(*entry) bool) *entry {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	return c.table.await(ctx, e, atMost, done)
}

// reachable returns a sandbox whose execd can be asked. It waits for a Pending one.
func (c *Cluster) reachable(ctx context.Context, id string, port int) (*entry, error) {
	if err := lifecycle.CheckPort(port); err != nil {
		return nil, err
	}
	e, err := c.find(ctx, id)
	if err != nil {
		return nil, err
	}
	e = c.await(ctx, e, endpointTimeout, func(e *entry) bool { return e.sandbox.Status.State != lifecycle.StatePending })
	switch state := e.sandbox.Status.State; {
	case state.Final(), state == lifecycle.StateStopping:
		return nil, lifecycle.Conflictf("the sandbox is %s and has no endpoint", state)
	case state == lifecycle.StatePending, e.address() == "":
		conflict := lifecycle.Conflictf("the sandbox is %s and does not answer yet; ask again", state)
		conflict.RetryAfter = 1
		return nil, conflict
	}
	return e, nil
}

// isID reports whether the text has the form of our ids. Anything else would be asked of the API server as the name of a resource.
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

// Ready returns an error of KindUnavailable when the API server does not answer.
func (c *Cluster) Ready(ctx context.Context) error {
	return explain(c.api.List(ctx, &v1alpha1.BatchSandboxList{}, client.InNamespace(c.Namespace), client.Limit(1)))
}

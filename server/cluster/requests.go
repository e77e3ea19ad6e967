package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/cluster/view"
	"sandbox.internal/server/lifecycle"
)

// maxConflicts is how often a change is tried again because the resource has changed meanwhile.
const maxConflicts = 20

// change changes a sandbox's resource, on the newest version that is known or else on what the API
// server has: edit is called again when the resource has changed meanwhile. It returns errors of
// edit as they are, and without a write when edit reports that there is nothing to do.
func (c *Cluster) change(ctx context.Context, id string, edit func(e *view.Entry, b *v1alpha1.BatchSandbox) (write bool, err error)) (*view.Entry, error) {
	e, err := c.view.Find(ctx, id)
	for attempt := 0; ; attempt++ {
		if err != nil {
			return nil, err
		}
		b := e.Batch.DeepCopy()
		if b.Annotations == nil {
			b.Annotations = make(map[string]string)
		}
		write, refused := edit(e, b)
		if attempt == 0 && (refused != nil || !write) {
			// What is known here may be old: only by what the API server has is a client refused,
			// or is there nothing to do.
			e, err = c.view.Fetch(ctx, id)
			continue
		}
		if refused != nil || !write {
			return e, refused
		}
		b.Annotations[view.AnnotationTouched] = c.Clock().UTC().Format(time.RFC3339Nano)
		err = c.patch(ctx, b, e.Batch)
		switch {
		case err == nil:
			e, err := c.view.Learn(b)
			if err == nil {
				c.announce(ctx, e.Version)
			}
			return e, err
		case apierrors.IsNotFound(err):
			return nil, lifecycle.NotFound(id)
		case !apierrors.IsConflict(err) || attempt == maxConflicts:
			return nil, view.Explain(err)
		}
		e, err = c.view.Fetch(ctx, id)
	}
}

// The limits of what a client puts into a resource. With both at their limits, etcd, which takes
// 1.5 MiB, has room for the status: the end of a sandbox must not fail because there is none.
const (
	// maxAnnotations is what the API server allows all annotations of an object, and a margin for
	// the controller's own and for those that are written without a check, such as the one that
	// stops the sandbox. They are JSON, which as a string of JSON has twice as many bytes at most.
	maxAnnotations = 256<<10 - 16<<10
	maxSpec        = 512 << 10 // as JSON
)

// checkAnnotations refuses values of a client that are too large to be annotations.
func checkAnnotations(b *v1alpha1.BatchSandbox) error {
	total := 0
	for name, value := range b.Annotations {
		total += len(name) + len(value)
	}
	if total > maxAnnotations {
		return lifecycle.Invalidf("metadata, extensions, entrypoint and networkPolicy: on a cluster they must have at most %d bytes together as JSON, and have %d",
			maxAnnotations, total)
	}
	return nil
}

// checkSpec refuses values of a client that are too large for the spec, and records how large it
// is.
func checkSpec(b *v1alpha1.BatchSandbox, variables int) error {
	encoded, err := json.Marshal(b.Spec)
	if err != nil {
		return err
	}
	if len(encoded) > maxSpec {
		return lifecycle.Invalidf(
			"env, entrypoint, volumes and networkPolicy: on a cluster the resource made of them must have at most %d bytes as JSON, and has %d; each of the %d variables takes about 150 and its name, whatever its value",
			maxSpec, len(encoded), variables)
	}
	b.Annotations[view.AnnotationSize] = strconv.Itoa(len(encoded))
	return nil
}

// patch sends the difference, which the API server refuses when the resource has another version by
// now.
func (c *Cluster) patch(ctx context.Context, b, before *v1alpha1.BatchSandbox) error {
	ctx, cancel := context.WithTimeout(ctx, view.CallTimeout)
	defer cancel()
	return c.api.Patch(ctx, b, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// Get implements lifecycle.Backend.
func (c *Cluster) Get(ctx context.Context, id string) (lifecycle.Sandbox, error) {
	e, err := c.view.Find(ctx, id)
	if err != nil {
		return lifecycle.Sandbox{}, err
	}
	return e.Sandbox, nil
}

// Read implements lifecycle.Backend.
func (c *Cluster) Read(ctx context.Context, id string) (lifecycle.Sandbox, error) {
	e, err := c.latest(ctx, id)
	if err != nil {
		return lifecycle.Sandbox{}, err
	}
	return e.Sandbox, nil
}

// latest returns a sandbox as the API server has it, with every change that a replica has answered.
// While the API server does not answer, it is what this replica knows: better an answer that may be
// old by seconds than none.
func (c *Cluster) latest(ctx context.Context, id string) (*view.Entry, error) {
	known, err := c.view.Find(ctx, id) // it has asked the API server itself for one that the view does not have
	if err != nil {
		return nil, err
	}
	asking, cancel := context.WithTimeout(ctx, freshTimeout)
	defer cancel()
	e, err := c.view.Fetch(asking, id)
	var unanswered *lifecycle.Error
	if errors.As(err, &unanswered) && unanswered.Kind == lifecycle.KindUnavailable && ctx.Err() == nil {
		return known, nil
	}
	return e, err
}

// List implements lifecycle.Backend.
func (c *Cluster) List(ctx context.Context, filter lifecycle.Filter, page lifecycle.Page) (lifecycle.Listing, error) {
	if err := page.Validate(); err != nil {
		return lifecycle.Listing{}, err
	}
	c.catchUp(ctx)
	items, total := c.view.List(filter, page)
	listing := lifecycle.Listing{Items: make([]lifecycle.Sandbox, 0, len(items)), Total: total}
	for _, e := range items {
		listing.Items = append(listing.Items, e.Sandbox)
	}
	return listing, nil
}

// Delete implements lifecycle.Backend.
func (c *Cluster) Delete(ctx context.Context, id string) error {
	_, err := c.change(ctx, id, func(e *view.Entry, b *v1alpha1.BatchSandbox) (bool, error) {
		switch state := e.Sandbox.Status.State; {
		case state == lifecycle.StateStopping:
			return false, nil
		case state.Final():
			return false, lifecycle.Conflictf("cannot delete: the sandbox is %s already; its record is kept for %v after its end", state, c.TerminatedRetention)
		}
		b.Annotations[v1alpha1.AnnotationStop] = string(lifecycle.ReasonUserDelete)
		b.Annotations[view.AnnotationAsked] = c.Clock().UTC().Format(time.RFC3339Nano)
		return true, nil
	})
	return err
}

// Pause implements lifecycle.Backend. A sandbox that sleeps is paused from then on: requests do not
// wake it.
func (c *Cluster) Pause(ctx context.Context, id string) error {
	return c.toggle(ctx, id, true, func(sandbox *lifecycle.Sandbox) error {
		if sandbox.Status.State == lifecycle.StateRunning || sandbox.Sleeps() || isWoken(sandbox) {
			return nil
		}
		return sandbox.Status.State.Conflict("pause", lifecycle.StateRunning)
	})
}

// Resume implements lifecycle.Backend.
func (c *Cluster) Resume(ctx context.Context, id string) error {
	if woken, err := c.resumeAsleep(ctx, id); woken || err != nil {
		return err
	}
	return c.toggle(ctx, id, false, func(sandbox *lifecycle.Sandbox) error {
		if sandbox.Status.State == lifecycle.StatePaused {
			return nil
		}
		return sandbox.Status.State.Conflict("resume", lifecycle.StatePaused)
	})
}

func (c *Cluster) toggle(ctx context.Context, id string, pause bool, check func(*lifecycle.Sandbox) error) error {
	e, err := c.change(ctx, id, func(e *view.Entry, b *v1alpha1.BatchSandbox) (bool, error) {
		if err := check(&e.Sandbox); err != nil {
			return false, err
		}
		b.Spec.Pause = pause
		b.Annotations[view.AnnotationAsked] = c.Clock().UTC().Format(time.RFC3339Nano)
		return true, nil
	})
	if err != nil {
		return err
	}
	c.view.Await(ctx, e, actTimeout, func(e *view.Entry) bool { return !e.Sandbox.Status.State.Transient() })
	return nil
}

// Renew implements lifecycle.Backend.
func (c *Cluster) Renew(ctx context.Context, id string, expiresAt time.Time) (time.Time, error) {
	expiresAt = expiresAt.UTC()
	_, err := c.change(ctx, id, func(e *view.Entry, b *v1alpha1.BatchSandbox) (bool, error) {
		if err := e.Sandbox.Status.State.CheckRenewable(); err != nil {
			return false, err
		}
		if err := lifecycle.CheckRenewal(c.Clock(), e.Sandbox.ExpiresAt, expiresAt); err != nil {
			return false, err
		}
		view.SetExpiry(b, expiresAt)
		delete(b.Annotations, v1alpha1.AnnotationTimedOut)
		return true, nil
	})
	return expiresAt, err
}

// UpdateMetadata implements lifecycle.Backend.
func (c *Cluster) UpdateMetadata(ctx context.Context, id string, patch map[string]*string) (map[string]string, error) {
	e, err := c.change(ctx, id, func(e *view.Entry, b *v1alpha1.BatchSandbox) (bool, error) {
		if state := e.Sandbox.Status.State; state.Final() {
			return false, lifecycle.Conflictf("cannot change the metadata: the sandbox is %s", state)
		}
		merged, err := lifecycle.MergeMetadata(e.Sandbox.Metadata, patch)
		if err != nil || maps.Equal(merged, e.Sandbox.Metadata) {
			return false, err
		}
		if err := view.Annotate(b, view.AnnotationMetadata, merged); err != nil {
			return false, err
		}
		return true, checkAnnotations(b)
	})
	if err != nil {
		return nil, err
	}
	merged := maps.Clone(e.Sandbox.Metadata)
	if merged == nil {
		merged = map[string]string{}
	}
	return merged, nil
}

// AwaitStable implements lifecycle.Backend.
func (c *Cluster) AwaitStable(ctx context.Context, id string, atMost time.Duration) (lifecycle.Sandbox, error) {
	e, err := c.latest(ctx, id) // another replica may have begun what is waited for
	if err != nil {
		return lifecycle.Sandbox{}, err
	}
	return c.view.Await(ctx, e, atMost, func(e *view.Entry) bool { return !e.Sandbox.Status.State.Transient() }).Sandbox, nil
}

// reachable returns a sandbox whose execd can be asked. It waits for a Pending one.
func (c *Cluster) reachable(ctx context.Context, id string, port int) (*view.Entry, error) {
	if err := lifecycle.CheckPort(port); err != nil {
		return nil, err
	}
	e, err := c.view.Find(ctx, id)
	if err != nil {
		return nil, err
	}
	e = c.view.Await(ctx, e, locateTimeout, func(e *view.Entry) bool { return e.Sandbox.Status.State != lifecycle.StatePending })
	switch state := e.Sandbox.Status.State; {
	case state.Final(), state == lifecycle.StateStopping:
		return nil, lifecycle.Conflictf("the sandbox is %s and has no endpoint", state)
	case state == lifecycle.StatePending, e.Address() == "":
		conflict := lifecycle.Conflictf("the sandbox is %s and does not answer yet; ask again", state)
		conflict.RetryAfter = 1
		return nil, conflict
	}
	return e, nil
}

// Ready returns an error of KindUnavailable when the API server does not answer.
func (c *Cluster) Ready(ctx context.Context) error {
	return view.Explain(c.api.List(ctx, &v1alpha1.BatchSandboxList{}, client.InNamespace(c.Namespace), client.Limit(1)))
}

// Events implements lifecycle.Backend.
func (c *Cluster) Events(ctx context.Context, selection lifecycle.EventSelection) (lifecycle.EventFeed, error) {
	return c.view.Events(ctx, selection)
}

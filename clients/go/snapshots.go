package sandbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"time"

	"sandbox.internal/clients/go/lifecycle"
)

// SnapshotOptions describe a snapshot. Nil means one without a name that does not expire.
type SnapshotOptions struct {
	// Name and Comment are for people.
	Name, Comment string
	// Metadata are tags.
	Metadata map[string]string
	// Memory keeps the processes of the sandbox too, which takes gVisor as its runtime: a rollback has
	// them go on. Such a snapshot has every secret that they have, and belongs to its sandbox.
	Memory bool
	// TTL is after how long the snapshot is deleted by itself, in whole seconds and at least 60; 0
	// means that it is not.
	TTL time.Duration
	// Wait is how long to wait until the snapshot is Ready; 0 means DefaultWait, and a negative one
	// not to wait: the snapshot may be Creating then.
	Wait time.Duration
}

// SnapshotError says that a snapshot could not be made.
type SnapshotError struct {
	ID      string
	State   string // state of the snapshot, such as Failed
	Reason  string // the cause for programs
	Message string // the cause for people
}

// Error implements error.
func (e *SnapshotError) Error() string {
	return fmt.Sprintf("snapshot %s is %s, not %s: %s: %s", e.ID, e.State, SnapshotReady, e.Reason, e.Message)
}

// Snapshot keeps the files of the sandbox, which is Running or Paused, and returns once they are
// kept. The processes of the sandbox stand still for a moment. A snapshot that fails is a
// [*SnapshotError]. All attempts of one call carry one Idempotency-Key, so that no snapshot is made
// twice.
func (s *Sandbox) Snapshot(ctx context.Context, o *SnapshotOptions) (Snapshot, error) {
	options := deref(o)
	request := lifecycle.TakeSnapshotRequest{
		Name: optional(options.Name), Comment: optional(options.Comment), Metadata: options.Metadata,
		TTL: optional(int(options.TTL / time.Second)),
	}
	if options.Memory {
		request.Kind = new(SnapshotMemory)
	}
	params := &lifecycle.TakeSnapshotParams{IdempotencyKey: new(rand.Text())}
	wait := cmp.Or(options.Wait, DefaultWait)
	if wait > 0 {
		params.Prefer = prefer(min(wait, waitStep))
	}
	var snapshot Snapshot
	err := s.client.call(ctx, repeatable, &snapshot, func(ctx context.Context) (*http.Response, error) {
		return s.client.service.TakeSnapshot(ctx, s.id, params, request)
	})
	if err != nil || wait < 0 {
		return snapshot, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, wait, fmt.Errorf("snapshot %s is not %s after %v", snapshot.ID, SnapshotReady, wait))
	defer cancel()
	for snapshot.Status.State == SnapshotCreating {
		again, err := s.client.snapshot(ctx, snapshot.ID, waitStep)
		if err != nil {
			return snapshot, errors.Join(err, context.Cause(ctx))
		}
		snapshot = again
	}
	if snapshot.Status.State != SnapshotReady {
		return snapshot, &SnapshotError{ID: snapshot.ID, State: snapshot.Status.State,
			Reason: deref(snapshot.Status.Reason), Message: deref(snapshot.Status.Message)}
	}
	return snapshot, nil
}

// Snapshots yields the snapshots of the sandbox that the key may read, newest first.
func (s *Sandbox) Snapshots(ctx context.Context) iter.Seq2[Snapshot, error] {
	return s.client.Snapshots(ctx, &SnapshotListOptions{SandboxID: s.id})
}

// reasonRollbackFailed is the reason of a sandbox that could not be given the files of a snapshot.
const reasonRollbackFailed = "ROLLBACK_FAILED"

// Rollback gives the sandbox the files of a snapshot, and returns when it is Running again. The
// processes of the sandbox end, and with a snapshot of memory those go on that it has; id,
// endpoints and token stay. When it fails, the error is a [*StateError]; the sandbox may be Running
// then, on the files of the snapshot where only its processes could not be restored.
func (s *Sandbox) Rollback(ctx context.Context, snapshotID string) error {
	request := lifecycle.RollbackRequest{SnapshotID: snapshotID}
	err := s.client.call(ctx, once, nil, func(ctx context.Context) (*http.Response, error) {
		return s.client.service.RollbackSandbox(ctx, s.id,
			&lifecycle.RollbackSandboxParams{Prefer: prefer(waitStep)}, request)
	})
	if err != nil {
		return err
	}
	for {
		info, err := s.refresh(ctx, waitStep)
		switch {
		case err != nil:
			return err
		case info.Status.State == Resuming:
			continue
		case info.Status.State == Running && info.Status.Reason != reasonRollbackFailed:
			return nil
		}
		return &StateError{ID: s.id, State: info.Status.State, Want: Running,
			Reason: info.Status.Reason, Message: info.Status.Message}
	}
}

// ForkOptions say how many sandboxes a fork makes, and what is different in them. Nil means one.
type ForkOptions struct {
	// Count is how many sandboxes are made, at most 100; 0 means 1.
	Count int
	// Timeout is how long each lives; 0 means as long as the sandbox itself was to live.
	Timeout time.Duration
	// Env are the environment variables of each: they have none of those of the sandbox.
	Env map[string]string
	// Wait is how long to wait until they are Running; 0 means DefaultWait, and a negative one not
	// to wait.
	Wait time.Duration
}

// Fork is one sandbox that a fork has made, or why it was not made. A sandbox that was made and is
// not Running comes with an error.
type Fork struct {
	Sandbox *Sandbox
	Err     error
}

// Fork makes sandboxes that begin with the files of this one, and waits until they are Running. The
// error is that of the whole: there is no sandbox then. All attempts of one call carry one
// Idempotency-Key, so that no sandbox is made twice.
func (s *Sandbox) Fork(ctx context.Context, o *ForkOptions) ([]Fork, error) {
	options := deref(o)
	request := lifecycle.ForkRequest{Env: options.Env, Timeout: optional(int(options.Timeout / time.Second)),
		Count: new(cmp.Or(options.Count, 1))}
	params := &lifecycle.ForkSandboxParams{IdempotencyKey: new(rand.Text())}
	wait := cmp.Or(options.Wait, DefaultWait)
	if wait > 0 {
		params.Prefer = prefer(min(wait, waitStep))
	}
	var list lifecycle.ForkList
	err := s.client.call(ctx, repeatable, &list, func(ctx context.Context) (*http.Response, error) {
		return s.client.service.ForkSandbox(ctx, s.id, params, request)
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, max(wait, 0), fmt.Errorf("not all sandboxes are %s after %v", Running, wait))
	defer cancel()
	forks := make([]Fork, len(list.Items))
	for i, item := range list.Items {
		forks[i] = s.client.fork(ctx, item, wait > 0)
	}
	return forks, nil
}

// fork returns what became of one sandbox of a fork, after a wait until it is Running if the caller
// wants that.
func (c *Client) fork(ctx context.Context, item lifecycle.Fork, wait bool) Fork {
	if item.Sandbox == nil {
		failure := deref(item.Error)
		return Fork{Err: &Error{Status: statusOfCode[failure.Code], Code: clean(failure.Code, 64), Message: clean(failure.Message, maxMessage)}}
	}
	box, err := c.box(*item.Sandbox)
	if err == nil && wait {
		_, err = box.waitFrom(ctx, box.Info(), Running)
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
	}
	return Fork{Sandbox: box, Err: err}
}

// statusOfCode has the status of the answer that a create would have had in the place of an item of
// a fork, so that [errors.Is] knows its kind.
var statusOfCode = map[string]int{
	"INVALID_REQUEST_BODY": http.StatusBadRequest, "FORBIDDEN": http.StatusForbidden, "CONFLICT": http.StatusConflict,
	"INTERNAL_ERROR": http.StatusInternalServerError, "SERVICE_UNAVAILABLE": http.StatusServiceUnavailable,
}

// SnapshotListOptions choose snapshots. Nil chooses all.
type SnapshotListOptions struct {
	// SandboxID keeps the snapshots of one sandbox, which may be gone.
	SandboxID string
	// States keeps snapshots in one of these.
	States []string
	// Name keeps snapshots with this name; empty keeps all.
	Name string
	// Metadata keeps snapshots that have all of these pairs.
	Metadata map[string]string
}

// Snapshots yields the snapshots that the key may read, newest first. Pages are read as they are
// needed, so one that is made or deleted meanwhile may be missing or come twice.
func (c *Client) Snapshots(ctx context.Context, o *SnapshotListOptions) iter.Seq2[Snapshot, error] {
	options := deref(o)
	return func(yield func(Snapshot, error) bool) {
		for page := 1; ; page++ {
			params := &lifecycle.ListSnapshotsParams{SandboxID: optional(options.SandboxID), State: options.States,
				Name: optional(options.Name), Page: &page, PageSize: new(pageSize)}
			if len(options.Metadata) > 0 {
				params.Metadata = new(metadataFilter(options.Metadata))
			}
			var list lifecycle.SnapshotList
			err := c.call(ctx, repeatable, &list, func(ctx context.Context) (*http.Response, error) {
				return c.service.ListSnapshots(ctx, params)
			})
			if err != nil {
				yield(Snapshot{}, err)
				return
			}
			for _, snapshot := range list.Items {
				if !yield(snapshot, nil) {
					return
				}
			}
			if !list.Pagination.HasNextPage || len(list.Items) == 0 {
				return
			}
		}
	}
}

// GetSnapshot returns a snapshot's details.
func (c *Client) GetSnapshot(ctx context.Context, id string) (Snapshot, error) {
	return c.snapshot(ctx, id, 0)
}

// snapshot waits for a while until the snapshot is not Creating.
func (c *Client) snapshot(ctx context.Context, id string, wait time.Duration) (Snapshot, error) {
	var snapshot Snapshot
	err := c.call(ctx, repeatable, &snapshot, func(ctx context.Context) (*http.Response, error) {
		params := &lifecycle.GetSnapshotParams{}
		if wait > 0 {
			params.Prefer = prefer(wait)
		}
		return c.service.GetSnapshot(ctx, id, params)
	})
	return snapshot, err
}

// DeleteSnapshot deletes a snapshot. Sandboxes that began with it keep their files.
func (c *Client) DeleteSnapshot(ctx context.Context, id string) error {
	sent := 0
	err := c.call(ctx, repeatable, nil, func(ctx context.Context) (*http.Response, error) {
		sent++
		return c.service.DeleteSnapshot(ctx, id)
	})
	var refused *Error
	if sent > 1 && errors.As(err, &refused) && refused.Code == "SNAPSHOT_NOT_FOUND" {
		return nil // an attempt before deleted it, and only its answer was lost
	}
	return err
}

package batch

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// freezer freezes and thaws the sandboxes of batches through their execds, outside of the
// controller's workers: an execd is the sandbox's, and may hold a request for as long as
// execdTimeout. A batch has one operation at a time, and another one begins only when that is done,
// so that a freeze never comes after the thaw that follows it.
type freezer struct {
	*background
	enqueue func(namespace, name string)

	operations map[types.NamespacedName]*operation // under mu
}

// operation is a freeze or thaw of all sandboxes of one batch.
type operation struct {
	batch  types.UID
	name   string // the last part of execd's path, with the query
	of     []daemon
	cancel context.CancelFunc
	done   bool
	result freezing
}

// daemon is where an execd is, and what reads the token that it demands: perhaps from the API
// server, which takes time.
type daemon struct {
	number int       // the sandbox's
	pod    types.UID // that it is in
	host   string
	token  func(context.Context) (string, error)
}

func (d daemon) same(other daemon) bool {
	return d.number == other.number && d.pod == other.pod && d.host == other.host
}

func newFreezer(client *http.Client, enqueue func(namespace, name string)) *freezer {
	return &freezer{background: newBackground(client), enqueue: enqueue,
		operations: make(map[types.NamespacedName]*operation)}
}

// do returns the result of an operation once, when it is done, and begins it when none goes on. The
// batch is reconciled when it is done. A result for other daemons says nothing of these: then the
// operation begins again.
func (f *freezer) do(b *v1alpha1.BatchSandbox, name string, daemons []daemon) freezing {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := types.NamespacedName{Namespace: b.Namespace, Name: b.Name}
	if o := f.operations[key]; o != nil {
		if !o.done {
			return freezing{} // its end enqueues the batch, also for another operation
		}
		delete(f.operations, key)
		if o.batch == b.UID && o.name == name && slices.EqualFunc(o.of, daemons, daemon.same) {
			return o.result
		}
	}
	if f.ctx.Err() != nil {
		return freezing{}
	}
	ctx, cancel := context.WithCancel(f.ctx)
	o := &operation{batch: b.UID, name: name, of: daemons, cancel: cancel}
	f.operations[key] = o
	f.wait.Go(func() {
		defer cancel()
		errs := make([]error, len(daemons))
		inParallel(len(daemons),
			func(i int) { errs[i] = callExecd(ctx, f.client, daemons[i], name) })
		result := freezing{tried: true, refused: make(map[int]error)}
		for i, err := range errs {
			if err == nil {
				continue
			}
			if result.err == nil {
				result.err = fmt.Errorf("sandbox %d: %w", daemons[i].number, err)
			}
			if errors.Is(err, errRefused) {
				result.refused[daemons[i].number] = err
			}
		}
		f.mu.Lock()
		o.done, o.result = true, result
		f.mu.Unlock()
		f.enqueue(key.Namespace, key.Name)
	})
	return freezing{}
}

// forget ends what goes on for a batch that is frozen and thawed no more, and removes its result.
func (f *freezer) forget(key types.NamespacedName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o := f.operations[key]; o != nil {
		o.cancel()
		delete(f.operations, key)
	}
}

package docker

import (
	"context"
	"fmt"
	"sync"
	"time"

	"sandbox.internal/runtime/engine"
)

// progressEvery keeps a pull from telling more than a reader of a status can follow.
const progressEvery = 250 * time.Millisecond

// pulls shares one pull between callers with the same image. Unlike x/sync's singleflight, a
// caller can leave without ending the pull for the others, and the pull ends when no caller waits
// for it any more.
type pulls struct {
	mu      sync.Mutex
	flights map[pullKey]*flight
	running sync.WaitGroup
}

// pullKey has the credentials so that only callers with the same ones share a pull.
type pullKey struct {
	ref  string
	auth engine.RegistryAuth
}

// flight is one pull. The fields above done are guarded by pulls.mu; id and err are set before done
// closes.
type flight struct {
	waiters  int
	sentence string
	changed  chan struct{} // closed and replaced with every new sentence
	cancel   context.CancelFunc

	done chan struct{}
	id   string
	err  error
}

type pullFunc func(ctx context.Context, report func(string)) (imageID string, err error)

func newPulls() *pulls {
	return &pulls{flights: map[pullKey]*flight{}}
}

// do joins the pull of key or starts it, and returns its result. progress is called by this
// goroutine alone: never after do returned, and a slow one delays no other. It may miss sentences,
// but not the one at which a pull that stalls stays.
func (p *pulls) do(ctx context.Context, key pullKey, progress func(string),
	pull pullFunc) (string, error) {
	f := p.join(ctx, key, pull)
	defer p.leave(key, f)
	for last := ""; ; {
		p.mu.Lock()
		sentence, changed := f.sentence, f.changed
		p.mu.Unlock()
		var rest <-chan time.Time
		if progress != nil && sentence != last {
			progress(sentence)
			last = sentence
			// what comes meanwhile is reported then, if it is still the latest
			changed, rest = nil, time.After(progressEvery)
		}
		select {
		case <-f.done:
			return f.id, f.err
		case <-ctx.Done():
			return "", fmt.Errorf("wait for image %s: %w", key.ref, ctx.Err())
		case <-changed:
		case <-rest:
		}
	}
}

func (p *pulls) join(ctx context.Context, key pullKey, pull pullFunc) *flight {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f, ok := p.flights[key]; ok {
		f.waiters++
		return f
	}
	// The first caller's cancellation must not reach the pull.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f := &flight{waiters: 1, changed: make(chan struct{}), cancel: cancel,
		done: make(chan struct{})}
	p.flights[key] = f
	p.running.Go(func() {
		defer cancel()
		f.id, f.err = pull(ctx, func(sentence string) { p.report(f, sentence) })
		p.mu.Lock()
		p.forget(key, f)
		p.mu.Unlock()
		close(f.done)
	})
	return f
}

func (p *pulls) report(f *flight, sentence string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f.sentence = sentence
	close(f.changed)
	f.changed = make(chan struct{})
}

func (p *pulls) leave(key pullKey, f *flight) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f.waiters--
	if f.waiters == 0 {
		f.cancel()
		// A cancelled pull takes a moment to end; who comes now must not join it.
		p.forget(key, f)
	}
}

// forget needs p.mu. The entry may already belong to a later pull of the same key.
func (p *pulls) forget(key pullKey, f *flight) {
	if p.flights[key] == f {
		delete(p.flights, key)
	}
}

func (p *pulls) close() {
	p.mu.Lock()
	for _, f := range p.flights {
		f.cancel()
	}
	p.mu.Unlock()
	p.running.Wait()
}

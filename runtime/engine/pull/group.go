// Package pull shares pulls of images between their callers, for engines.
package pull

import (
	"context"
	"fmt"
	"sync"
	"time"

	"sandbox.internal/runtime/engine"
)

// progressEvery keeps a pull from reporting more than a reader of a status can follow.
const progressEvery = 250 * time.Millisecond

// Group shares one pull between callers with the same key. Unlike x/sync's singleflight, a caller
// can leave without ending the pull for the others, and the pull ends when no caller waits for it
// any more.
type Group struct {
	mu      sync.Mutex
	flights map[Key]*flight
	running sync.WaitGroup
}

// Key says what is pulled. It has the credentials and the caller so that only callers who may have
// what the others may share a pull, and each waits in the turn of its own key.
type Key struct {
	Ref    string // full
	Auth   engine.RegistryAuth
	Caller engine.Caller
}

// flight is one pull. The fields above done are guarded by Group.mu until done closes, when they
// are final but for waiters; id and err are set before done closes.
type flight struct {
	waiters  int
	sentence string
	changed  chan struct{} // closed and replaced with every new sentence
	cancel   context.CancelFunc

	done chan struct{}
	id   string
	err  error
}

// Func pulls an image and reports how it goes in short sentences.
type Func func(ctx context.Context, report func(string)) (imageID string, err error)

// NewGroup returns a group without pulls.
func NewGroup() *Group {
	return &Group{flights: map[Key]*flight{}}
}

// Do joins the pull of key or starts it, and returns its result. progress is called by this
// goroutine alone: never after Do returned, and a slow one delays no other. It may miss sentences,
// but not the one at which a pull that stalls stays.
func (g *Group) Do(ctx context.Context, key Key, progress func(string), pull Func) (string, error) {
	f := g.join(ctx, key, pull)
	defer g.leave(key, f)
	for last := ""; ; {
		g.mu.Lock()
		sentence, changed := f.sentence, f.changed
		g.mu.Unlock()
		var rest <-chan time.Time
		if progress != nil && sentence != last {
			progress(sentence)
			last = sentence
			// what comes meanwhile is reported then, if it is still the latest
			changed, rest = nil, time.After(progressEvery)
		}
		select {
		case <-f.done:
			// A short pull may be over before its first sentence was seen.
			if progress != nil && last == "" && sentence == "" && f.sentence != "" {
				progress(f.sentence)
			}
			return f.id, f.err
		case <-ctx.Done():
			return "", fmt.Errorf("wait for image %s: %w", key.Ref, ctx.Err())
		case <-changed:
		case <-rest:
		}
	}
}

func (g *Group) join(ctx context.Context, key Key, pull Func) *flight {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f, ok := g.flights[key]; ok {
		f.waiters++
		return f
	}
	// The first caller's cancellation must not reach the pull.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f := &flight{waiters: 1, changed: make(chan struct{}), cancel: cancel,
		done: make(chan struct{})}
	g.flights[key] = f
	g.running.Go(func() {
		defer cancel()
		f.id, f.err = pull(ctx, func(sentence string) { g.report(f, sentence) })
		g.mu.Lock()
		g.forget(key, f)
		g.mu.Unlock()
		close(f.done)
	})
	return f
}

func (g *Group) report(f *flight, sentence string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f.sentence = sentence
	close(f.changed)
	f.changed = make(chan struct{})
}

func (g *Group) leave(key Key, f *flight) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f.waiters--
	if f.waiters == 0 {
		f.cancel()
		// A cancelled pull takes a moment to end; who comes now must not join it.
		g.forget(key, f)
	}
}

// forget needs g.mu. The entry may already belong to a later pull of the same key.
func (g *Group) forget(key Key, f *flight) {
	if g.flights[key] == f {
		delete(g.flights, key)
	}
}

// Close cancels the pulls that are under way and waits for their end.
func (g *Group) Close() {
	g.mu.Lock()
	for _, f := range g.flights {
		f.cancel()
	}
	g.mu.Unlock()
	g.running.Wait()
}

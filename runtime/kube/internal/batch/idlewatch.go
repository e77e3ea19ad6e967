package batch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"

	"sandbox.internal/internal/slowread"
	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/wire/sse"
)

const (
	// maxIdleWatches is how many execds are followed at once; each takes a connection.
	maxIdleWatches = 20000
	// watchSilence is how long an execd may report nothing, not even that there is nothing to
	// report, before it is asked again.
	watchSilence = 20 * time.Second
	// firstWatchPause and longestWatchPause are between attempts to follow an execd.
	firstWatchPause   = 100 * time.Millisecond
	longestWatchPause = 30 * time.Second
	// longestWatchEvent bounds an event, in bytes; execd's have about a hundred.
	longestWatchEvent = 4 << 10
	// watchBytes is how many bytes of a report are read per second, and at once: what has taken
	// execd's place must not cost the controller its processor.
	watchBytes = 8 << 10
	// maxChanges is how many changes per second, and at once, have a batch reconciled without a
	// pause, watchPause how long one waits that is beyond. What has taken execd's place must
	// not keep the workers busy.
	maxChanges = 10
	watchPause = 200 * time.Millisecond
	// shortestSleep is how far away the time must be that the sandbox is to be woken at.
	shortestSleep = time.Second
)

// activity is what an execd says of whether its sandbox is idle and sleeps.
type activity struct {
	known  bool // it has said whether the sandbox sleeps, on the connection that there is
	asleep bool
	wakes  bool // requests wake it
	idle   bool // nothing has kept it awake for as long as was asked for
	full   bool // as many execds are followed as may be
}

// idleWatches follows execds outside of the controller's workers, as long as this process leads.
type idleWatches struct {
	*background
	enqueue func(namespace, name string, pause time.Duration)

	streams map[types.NamespacedName]*idleWatch // under mu
}

// idleWatch follows the execd of one batch.
type idleWatch struct {
	of     *idleWatches
	key    types.NamespacedName
	batch  types.UID
	daemon daemon
	quiet  time.Duration
	cancel context.CancelFunc
	limit  *rate.Limiter // of changes

	now activity // under of.mu
}

func newIdleWatches(client *http.Client,
	enqueue func(namespace, name string, pause time.Duration)) *idleWatches {
	return &idleWatches{background: newBackground(client), enqueue: enqueue,
		streams: make(map[types.NamespacedName]*idleWatch)}
}

// follow returns what is known of a batch's sandbox, and begins to follow it where nothing does.
// The batch is reconciled at each change. Quiet is for how long nothing must have kept the sandbox
// awake.
func (f *idleWatches) follow(b *v1alpha1.BatchSandbox, quiet time.Duration, at daemon) activity {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := types.NamespacedName{Namespace: b.Namespace, Name: b.Name}
	if s := f.streams[key]; s != nil {
		if s.batch == b.UID && s.quiet == quiet && s.daemon.same(at) {
			return s.now
		}
		f.end(s)
	}
	if f.ctx.Err() != nil || len(f.streams) >= maxIdleWatches {
		return activity{full: true}
	}
	ctx, cancel := context.WithCancel(f.ctx)
	s := &idleWatch{of: f, key: key, batch: b.UID, daemon: at, quiet: quiet, cancel: cancel,
		limit: rate.NewLimiter(maxChanges, maxChanges)}
	f.streams[key] = s
	f.wait.Go(func() {
		defer cancel()
		s.run(ctx)
	})
	return activity{}
}

// forget follows a batch's sandbox no more.
func (f *idleWatches) forget(key types.NamespacedName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.streams[key]; s != nil {
		f.end(s)
	}
}

// end ends a stream. The caller holds mu.
func (f *idleWatches) end(s *idleWatch) {
	s.cancel()
	delete(f.streams, s.key)
}

// run follows the execd until ctx ends.
func (s *idleWatch) run(ctx context.Context) {
	pause := firstWatchPause
	for ctx.Err() == nil {
		began := time.Now()
		_ = s.read(ctx) // execd, the pod or its network ends it; a sandbox that is gone is forgotten
		s.set(ctx, func(now *activity) { *now = activity{} })
		if time.Since(began) > longestWatchPause {
			pause = firstWatchPause
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		pause = min(2*pause, longestWatchPause)
	}
}

// set changes what is known, and has the batch reconciled if that was a change.
func (s *idleWatch) set(ctx context.Context, change func(now *activity)) {
	s.of.mu.Lock()
	before := s.now
	if ctx.Err() == nil {
		change(&s.now)
	}
	changed := s.now != before
	s.of.mu.Unlock()
	switch {
	case !changed:
	case s.limit.Allow():
		s.of.enqueue(s.key.Namespace, s.key.Name, 0)
	default:
		s.of.enqueue(s.key.Namespace, s.key.Name, watchPause)
	}
}

// watchEvent is an event of GET /idle/watch.
type watchEvent struct {
	Type   string
	Wake   bool
	WakeAt time.Time
}

// read follows one answer of execd until it ends.
func (s *idleWatch) read(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	began := time.Now()
	body, err := s.ask(ctx)
	if err != nil {
		return err
	}
	defer body.Close()
	silence := time.AfterFunc(watchSilence, cancel)
	defer silence.Stop()
	events := make(chan watchEvent)
	ended := make(chan error, 1)
	go func() {
		ended <- readWatch(ctx, body, func() { silence.Reset(watchSilence) }, events)
	}()
	due := time.NewTimer(time.Hour)
	due.Stop()
	defer due.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-due.C:
			s.set(ctx, func(now *activity) { now.idle = true })
		case event := <-events:
			due.Stop()
			if event.Type == "idle" {
				due.Reset(s.untilIdle(began, event))
			}
			s.set(ctx, func(now *activity) {
				now.idle = false
				switch event.Type {
				case "asleep":
					now.known, now.asleep, now.wakes = true, true, event.Wake
				case "awake":
					now.known, now.asleep, now.wakes = true, false, false
				}
			})
		}
	}
}

// untilIdle returns how long after an event the sandbox counts as idle: not before the time that
// was asked for, whatever has taken execd's place says, and not right before the time that the
// sandbox is to be woken at.
func (s *idleWatch) untilIdle(began time.Time, event watchEvent) time.Duration {
	wait := max(0, s.quiet-time.Since(began))
	if until := time.Until(event.WakeAt); until > 0 && until < shortestSleep+wait {
		wait = max(wait, until)
	}
	return wait
}

// ask begins to follow execd.
func (s *idleWatch) ask(ctx context.Context) (io.ReadCloser, error) {
	path := fmt.Sprintf("/idle/watch?sleep=true&idleMilliseconds=%d", s.quiet.Milliseconds())
	response, err := s.daemon.ask(ctx, s.of.client, http.MethodGet, path)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		response.Body.Close()
		return nil, errors.New("execd does not report whether its sandbox is idle")
	}
	return response.Body, nil
}

// readWatch sends the events of an answer until it ends, and calls alive for each part of it.
func readWatch(ctx context.Context, body io.Reader, alive func(), events chan<- watchEvent) error {
	parts := slowread.New(ctx, reading{body, alive}, watchBytes)
	for reader := sse.NewReader(parts, longestWatchEvent); ; {
		data, err := reader.Next()
		if err != nil {
			return err
		}
		var event watchEvent
		if err := json.Unmarshal(data, &event); err != nil {
			return errors.New("execd's report of whether its sandbox is idle is not in JSON")
		}
		select {
		case events <- event:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// reading calls alive for each part that is read.
type reading struct {
	io.Reader
	alive func()
}

// Read implements io.Reader.
func (r reading) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if n > 0 {
		r.alive()
	}
	return n, err
}

package batch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/wire/sse"
)

const (
	// maxRests is how many execds are followed at once; each takes a connection.
	maxRests = 20000
	// restSilence is how long an execd may report nothing, not even that there is nothing to
	// report, before it is asked again.
	restSilence = 20 * time.Second
	// firstRestPause and longestRestPause are between attempts to follow an execd.
	firstRestPause   = 100 * time.Millisecond
	longestRestPause = 30 * time.Second
	// longestRestEvent bounds an event, in bytes; execd's have about a hundred.
	longestRestEvent = 4 << 10
	// restBytes is how many bytes of a report are read per second, and at once: what has taken
	// execd's place must not cost the controller its processor.
	restBytes = 8 << 10
	// restChanges is how many changes per second, and at once, have a batch reconciled without a
	// pause, restPause how long one waits that is beyond. What has taken execd's place must
	// not keep the workers busy.
	restChanges = 10
	restPause   = 200 * time.Millisecond
	// shortestSleep is how far away the time must be that the sandbox is to be woken at.
	shortestSleep = time.Second
)

// rest is what an execd says of the rest of its sandbox.
type rest struct {
	known  bool // it has said whether the sandbox sleeps, on the connection that there is
	asleep bool
	wakes  bool // requests wake it
	idle   bool // nothing has kept it awake for as long as was asked for
	full   bool // as many execds are followed as may be
}

// rests follows execds outside of the controller's workers, as long as this process leads.
type rests struct {
	client  *http.Client
	enqueue func(namespace, name string, pause time.Duration)

	ctx    context.Context // ends every stream
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu      sync.Mutex
	streams map[types.NamespacedName]*restStream
}

// restStream follows the execd of one batch.
type restStream struct {
	of     *rests
	key    types.NamespacedName
	batch  types.UID
	daemon daemon
	quiet  time.Duration
	cancel context.CancelFunc
	limit  *rate.Limiter // of changes

	now rest // under of.mu
}

func newRests(client *http.Client,
	enqueue func(namespace, name string, pause time.Duration)) *rests {
	f := &rests{client: client, enqueue: enqueue,
		streams: make(map[types.NamespacedName]*restStream)}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f
}

// Start returns after ctx has ended and every stream with it. It makes the rests a part of a
// manager.
func (f *rests) Start(ctx context.Context) error {
	<-ctx.Done()
	f.mu.Lock()
	f.cancel()
	f.mu.Unlock()
	f.wait.Wait()
	f.client.CloseIdleConnections()
	return nil
}

// follow returns what is known of a batch's sandbox, and begins to follow it where nothing does.
// The batch is reconciled at each change. Quiet is for how long nothing must have kept the sandbox
// awake.
func (f *rests) follow(b *v1alpha1.BatchSandbox, quiet time.Duration, at daemon) rest {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := types.NamespacedName{Namespace: b.Namespace, Name: b.Name}
	if s := f.streams[key]; s != nil {
		if s.batch == b.UID && s.quiet == quiet && s.daemon.same(at) {
			return s.now
		}
		f.end(s)
	}
	if f.ctx.Err() != nil || len(f.streams) >= maxRests {
		return rest{full: true}
	}
	ctx, cancel := context.WithCancel(f.ctx)
	s := &restStream{of: f, key: key, batch: b.UID, daemon: at, quiet: quiet, cancel: cancel,
		limit: rate.NewLimiter(restChanges, restChanges)}
	f.streams[key] = s
	f.wait.Go(func() {
		defer cancel()
		s.run(ctx)
	})
	return rest{}
}

// forget follows a batch's sandbox no more.
func (f *rests) forget(key types.NamespacedName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.streams[key]; s != nil {
		f.end(s)
	}
}

// end ends a stream. The caller holds mu.
func (f *rests) end(s *restStream) {
	s.cancel()
	delete(f.streams, s.key)
}

// run follows the execd until ctx ends.
func (s *restStream) run(ctx context.Context) {
	pause := firstRestPause
	for ctx.Err() == nil {
		began := time.Now()
		_ = s.read(ctx) // execd, the pod or its network ends it; a sandbox that is gone is forgotten
		s.set(ctx, func(now *rest) { *now = rest{} })
		if time.Since(began) > longestRestPause {
			pause = firstRestPause
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		pause = min(2*pause, longestRestPause)
	}
}

// set changes what is known, and has the batch reconciled if that was a change.
func (s *restStream) set(ctx context.Context, change func(now *rest)) {
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
		s.of.enqueue(s.key.Namespace, s.key.Name, restPause)
	}
}

// restEvent is an event of GET /idle/watch.
type restEvent struct {
	Type   string
	Wake   bool
	WakeAt time.Time
}

// read follows one answer of execd until it ends.
func (s *restStream) read(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	began := time.Now()
	body, err := s.ask(ctx)
	if err != nil {
		return err
	}
	defer body.Close()
	silence := time.AfterFunc(restSilence, cancel)
	defer silence.Stop()
	events := make(chan restEvent)
	ended := make(chan error, 1)
	go func() {
		ended <- readRest(ctx, body, func() { silence.Reset(restSilence) }, events)
	}()
	due := time.NewTimer(time.Hour)
	due.Stop()
	defer due.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-due.C:
			s.set(ctx, func(now *rest) { now.idle = true })
		case event := <-events:
			due.Stop()
			if event.Type == "idle" {
				due.Reset(s.untilIdle(began, event))
			}
			s.set(ctx, func(now *rest) {
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
func (s *restStream) untilIdle(began time.Time, event restEvent) time.Duration {
	wait := max(0, s.quiet-time.Since(began))
	if until := time.Until(event.WakeAt); until > 0 && until < shortestSleep+wait {
		wait = max(wait, until)
	}
	return wait
}

// ask begins to follow execd.
func (s *restStream) ask(ctx context.Context) (io.ReadCloser, error) {
	url := fmt.Sprintf("http://%s/idle/watch?sleep=true&idleMilliseconds=%d",
		net.JoinHostPort(s.daemon.host, strconv.Itoa(v1alpha1.PortExecd)), s.quiet.Milliseconds())
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	token, err := s.daemon.token(ctx)
	if err != nil {
		return nil, err
	}
	if token != "" {
		request.Header.Set(v1alpha1.HeaderExecdToken, token)
	}
	response, err := s.of.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("execd does not answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		response.Body.Close()
		return nil, errors.New("execd does not report whether its sandbox is idle")
	}
	return response.Body, nil
}

// readRest sends the events of an answer until it ends, and calls alive for each part of it.
func readRest(ctx context.Context, body io.Reader, alive func(), events chan<- restEvent) error {
	limit := rate.NewLimiter(restBytes, restBytes)
	parts := readerFunc(func(p []byte) (int, error) {
		n, err := body.Read(p[:min(len(p), restBytes)])
		if n > 0 {
			alive()
			if waited := limit.WaitN(ctx, n); waited != nil {
				return n, waited
			}
		}
		return n, err
	})
	for reader := sse.NewReader(parts, longestRestEvent); ; {
		data, err := reader.Next()
		if err != nil {
			return err
		}
		var event restEvent
		if err := json.Unmarshal(data, &event); err != nil {
			return errors.New("execd's report of the rest of its sandbox is not in JSON")
		}
		select {
		case events <- event:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// readerFunc is a function as an io.Reader.
type readerFunc func(p []byte) (int, error)

// Read implements io.Reader.
func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

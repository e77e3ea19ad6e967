package holds_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sandbox.internal/execd/internal/holds"
)

// silence is how often a watch of these tests is to write when it has nothing to report.
const silence = time.Hour

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pass lets time pass, and what is due then be done.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// script collects what a watch writes, with the time of each event since the test began.
type script struct {
	began  time.Time
	mu     sync.Mutex
	events []string // under mu
	ended  chan error
	stop   context.CancelFunc
}

// follow starts a watch. Its events are complete whenever the test's bubble is at rest.
func follow(t *testing.T, r *holds.Registry, quiet time.Duration) *script {
	t.Helper()
	return followWith(t, r, quiet, func(holds.Event) error { return nil })
}

// followWith is follow with a function that is called before an event counts as written.
func followWith(t *testing.T, r *holds.Registry, quiet time.Duration, before func(holds.Event) error) *script {
	t.Helper()
	w, err := r.Watch(quiet)
	must(t, err)
	return followWatch(t, w, before)
}

// followWatch begins to collect what a watch writes.
func followWatch(t *testing.T, w *holds.Watch, before func(holds.Event) error) *script {
	t.Helper()
	s := &script{began: time.Now(), ended: make(chan error, 1)}
	ctx, stop := context.WithCancel(t.Context())
	s.stop = stop
	go func() {
		s.ended <- w.Follow(ctx, silence, func(e holds.Event) error {
			if err := before(e); err != nil {
				return err
			}
			text := "silence"
			switch {
			case e.Idle && e.WakeAt.IsZero():
				text = "idle"
			case e.Idle:
				text = fmt.Sprintf("idle until %v", e.WakeAt.Sub(s.began))
			case e.Asleep && e.Wakes:
				text = "asleep wakes"
			case e.Asleep:
				text = "asleep"
			case e.Awake:
				text = "awake"
			case e.Busy != "":
				text = "busy " + string(e.Busy)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.events = append(s.events, fmt.Sprintf("%v %s", time.Since(s.began), text))
			return nil
		})
	}()
	synctest.Wait()
	return s
}

// expect compares what was written since the last call.
func (s *script) expect(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.events, want) {
		t.Errorf("written was %q, want %q", s.events, want)
	}
	s.events = nil
}

func TestIdleAfterTheQuietTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := holds.New(holds.Options{})
		pass(time.Minute) // what was before the watch does not count
		s := follow(t, r, time.Second)
		defer s.stop()
		pass(time.Second - 1)
		s.expect(t)
		pass(1)
		s.expect(t, "1s idle")
		pass(time.Minute)
		s.expect(t)

		one := r.Begin(holds.Command, "one")
		s.expect(t, "1m1s busy command")
		two := r.Begin(holds.Code, "two")
		pass(time.Minute)
		one.End()
		one.End()
		pass(time.Minute)
		s.expect(t)
		two.End()
		pass(time.Second)
		s.expect(t, "3m2s idle")
	})
}

func TestHoldWithinTheQuietTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := holds.New(holds.Options{})
		s := follow(t, r, time.Second)
		defer s.stop()
		for range 10 {
			pass(900 * time.Millisecond)
			r.Begin(holds.Request, "").End()
		}
		s.expect(t)
		pass(time.Second)
		s.expect(t, "10s idle")
	})
}

// TestRequestThatHasArrived: the sandbox is not idle before the request that has arrived within the
// quiet time has its hold, or is gone.
func TestRequestThatHasArrived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var arriving atomic.Bool
		var asked atomic.Int64
		r := holds.New(holds.Options{Arriving: func() bool { asked.Add(1); return arriving.Load() }})
		s := follow(t, r, 8*time.Second)
		defer s.stop()
		arriving.Store(true)
		pass(20 * time.Second)
		s.expect(t)
		if n := asked.Load(); n < 10 || n > 20 {
			t.Errorf("the watch has looked %d times in 12 s", n)
		}
		hold := r.Begin(holds.Request, "")
		pass(time.Minute)
		hold.End()
		pass(10 * time.Second)
		s.expect(t)
		arriving.Store(false)
		pass(time.Second)
		s.expect(t, "1m31s idle")
		arriving.Store(true) // it is announced when it has its hold
		pass(time.Minute)
		s.expect(t)
		r.Begin(holds.Request, "").End()
		s.expect(t, "2m31s busy request")
	})
}

func TestReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := holds.New(holds.Options{})
		pass(time.Second)
		if got := r.Report(); len(got.Held) != 0 || got.Idle != time.Second || !got.WakeAt.IsZero() {
			t.Errorf("without a hold: %+v", got)
		}
		began := time.Now()
		first := r.BeginRequest("GET", "/files/"+strings.Repeat("é", 200))
		pass(time.Second)
		second := r.Begin(holds.Proxy, "8080")
		third := r.Begin(holds.Terminal, "t")
		second.End()
		got := r.Report()
		want := []holds.Held{
			{Kind: holds.Request, ID: "GET /files/" + strings.Repeat("é", 122), Since: began},
			{Kind: holds.Terminal, ID: "t", Since: began.Add(time.Second)},
		}
		if !slices.Equal(got.Held, want) || got.Idle != 0 {
			t.Errorf("the report is %+v, want %+v", got, want)
		}
		for range 2000 {
			r.Begin(holds.Command, "")
		}
		if got := r.Report().Held; len(got) != 1000 || got[0] != want[0] {
			t.Errorf("of more than 2000 holds %d are listed, the first is %+v", len(got), got[0])
		}
		first.End()
		third.End()
		if got := r.Report().Held[0].Kind; got != holds.Command {
			t.Errorf("the oldest hold is a %s", got)
		}
	})
}

func TestNoRegistryTakesAnyHold(t *testing.T) {
	var r *holds.Registry
	r.Begin(holds.Command, "").End()
	r.BeginRequest("GET", "/").End()
}

// TestBusyIsWrittenBeforeTheWork: while the event is on its way, no hold begins.
func TestBusyIsWrittenBeforeTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := holds.New(holds.Options{})
		release := make(chan struct{})
		slow := followWith(t, r, time.Second, func(e holds.Event) error {
			if e.Busy != "" {
				<-release
			}
			return nil
		})
		defer slow.stop()
		other := follow(t, r, time.Second)
		defer other.stop()
		pass(time.Second)
		slow.expect(t, "1s idle")
		other.expect(t, "1s idle")
		begun := make(chan *holds.Hold, 2)
		for _, kind := range []holds.Kind{holds.Request, holds.Command} { // the second finds the first one's event unwritten
			go func() { begun <- r.Begin(kind, "") }()
			synctest.Wait()
		}
		other.expect(t, "1s busy request")
		select {
		case <-begun:
			t.Fatal("a hold has begun before the event was written")
		default:
		}
		close(release)
		slow.expect(t, "1s busy request")
		(<-begun).End()
		(<-begun).End()
		pass(time.Second)
		slow.expect(t, "2s idle")
	})
}

// TestWatchThatCannotWrite: a hold waits for a second, once, and the watch ends.
func TestWatchThatCannotWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := holds.New(holds.Options{})
		release := make(chan struct{})
		var stuck []*script
		for range 3 {
			stuck = append(stuck, followWith(t, r, time.Second, func(e holds.Event) error {
				if e.Busy != "" {
					<-release
				}
				return nil
			}))
		}
		broken := errors.New("broken pipe")
		failing := followWith(t, r, time.Second, func(e holds.Event) error {
			if e.Busy != "" {
				return broken
			}
			return nil
		})
		good := follow(t, r, time.Second)
		defer good.stop()
		pass(time.Second)
		before := time.Now()
		hold := r.Begin(holds.Request, "")
		if took := time.Since(before); took != time.Second {
			t.Errorf("the hold has waited for %v", took)
		}
		if err := <-failing.ended; err != broken {
			t.Errorf("the watch that fails ended with %v", err)
		}
		r.Begin(holds.Command, "").End()
		hold.End()
		pass(time.Second)
		r.Begin(holds.Command, "").End()
		if took := time.Since(before); took != 2*time.Second {
			t.Errorf("later holds have waited: %v", took)
		}
		good.expect(t, "1s idle", "1s busy request", "3s idle", "3s busy command")
		close(release)
		for _, s := range stuck {
			if err := <-s.ended; !errors.Is(err, holds.ErrGivenUp) {
				t.Errorf("the watch that was stuck ended with %v", err)
			}
		}
	})
}

func TestWatchesAreBounded(t *testing.T) {
	r := holds.New(holds.Options{})
	var all []*holds.Watch
	for range 16 {
		w, err := r.Watch(time.Hour)
		must(t, err)
		all = append(all, w)
	}
	if _, err := r.Watch(time.Hour); !errors.Is(err, holds.ErrTooManyWatches) {
		t.Errorf("the seventeenth watch: %v", err)
	}
	all[3].Close()
	if _, err := r.Watch(time.Hour); err != nil {
		t.Errorf("a watch after another one was closed: %v", err)
	}
}

func TestSilenceIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := holds.New(holds.Options{})
		s := follow(t, r, 3*silence/2)
		defer s.stop()
		pass(2 * silence)
		s.expect(t, "1h0m0s silence", "1h30m0s idle")
		hold := r.Begin(holds.Request, "")
		pass(silence)
		s.expect(t, "2h0m0s busy request", "3h0m0s silence")
		hold.End()
	})
}

func TestFollowEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := holds.New(holds.Options{})
		s := follow(t, r, time.Second)
		pass(time.Second)
		s.stop()
		if err := <-s.ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the watch ended with %v", err)
		}
		r.Begin(holds.Request, "").End() // waits for no one
		s.expect(t, "1s idle")
	})
}

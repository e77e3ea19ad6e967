package holds_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sandbox.internal/execd/internal/holds"
)

// processes is a sandbox's, as far as a registry sees it.
type processes struct {
	stopping func(ctx context.Context) error // called while they are stopped; nil takes no time
	thawing  func() error                    // likewise

	mu             sync.Mutex
	frozen, asleep bool
	thaws          int
}

func (p *processes) Sleep(ctx context.Context) error  { return p.stop(ctx, true) }
func (p *processes) Freeze(ctx context.Context) error { return p.stop(ctx, false) }

func (p *processes) stop(ctx context.Context, asleep bool) error {
	p.mu.Lock()
	was := p.frozen
	p.frozen, p.asleep = true, asleep
	p.mu.Unlock()
	if p.stopping != nil {
		if err := p.stopping(ctx); err != nil && !was {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.frozen = false
			return err
		}
	}
	return nil
}

func (p *processes) Thaw() error {
	if p.thawing != nil {
		if err := p.thawing(); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen, p.asleep = false, false
	p.thaws++
	return nil
}

func (p *processes) Frozen() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.frozen
}

func (p *processes) isAsleep() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.frozen && p.asleep
}

// within is a condition under which requests wake the sandbox.
func within(idle time.Duration) holds.Condition { return holds.Condition{Idle: idle, Wakes: true} }

// followSleep is follow for a watch of the sleep as well.
func followSleep(t *testing.T, r *holds.Registry, quiet time.Duration) *script {
	t.Helper()
	w, err := r.WatchSleep(quiet)
	must(t, err)
	return followWatch(t, w, func(holds.Event) error { return nil })
}

func TestSleepAndWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := new(processes)
		r := holds.New(holds.Options{Processes: p})
		s := followSleep(t, r, time.Second)
		defer s.stop()
		s.expect(t, "0s awake")
		if err := r.Sleep(t.Context(), within(time.Second)); !errors.Is(err, holds.ErrBusy) || p.Frozen() {
			t.Errorf("before it is idle: %v, frozen %t", err, p.Frozen())
		}
		pass(time.Second)
		hold := r.Begin(holds.Command, "")
		if err := r.Sleep(t.Context(), within(time.Second)); !errors.Is(err, holds.ErrBusy) || p.Frozen() {
			t.Errorf("with a hold: %v, frozen %t", err, p.Frozen())
		}
		hold.End()
		s.expect(t, "1s idle", "1s busy command")
		pass(time.Second)
		must(t, r.Sleep(t.Context(), within(time.Second)))
		must(t, r.Sleep(t.Context(), within(time.Second)))
		if !p.isAsleep() {
			t.Error("it runs")
		}
		s.expect(t, "2s idle", "2s asleep wakes")
		pass(time.Minute)
		request := r.BeginRequest("GET", "/x")
		request.AwaitAwake(t.Context())
		if p.Frozen() {
			t.Error("a request is served while the processes are frozen")
		}
		s.expect(t, "1m2s busy request", "1m2s awake")
		request.End()
		pass(time.Second)
		s.expect(t, "1m3s idle")
	})
}

// TestRequestWhileFallingAsleep: a request comes when it is decided that the sandbox falls asleep,
// and its processes are being stopped.
func TestRequestWhileFallingAsleep(t *testing.T) {
	for _, slow := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := new(processes)
			r := holds.New(holds.Options{Processes: p})
			s := followSleep(t, r, time.Second)
			defer s.stop()
			var served sync.WaitGroup
			p.stopping = func(ctx context.Context) error {
				arrived := make(chan struct{})
				served.Go(func() {
					hold := r.BeginRequest("GET", "/x")
					defer hold.End()
					close(arrived)
					hold.AwaitAwake(t.Context())
					if p.Frozen() {
						t.Error("the request is served while the processes are frozen")
					}
				})
				<-arrived
				if slow {
					return nil // they have stopped by then
				}
				<-ctx.Done()
				return ctx.Err()
			}
			pass(time.Second)
			if err := r.Sleep(t.Context(), within(time.Second)); !errors.Is(err, holds.ErrBusy) {
				t.Errorf("falling asleep: %v", err)
			}
			served.Wait()
			if p.Frozen() {
				t.Error("it is frozen afterwards")
			}
			s.expect(t, "0s awake", "1s idle", "1s busy request")
		})
	}
}

func TestTimeToWakeAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := new(processes)
		r := holds.New(holds.Options{Processes: p})
		s := followSleep(t, r, time.Second)
		defer s.stop()
		_, err := r.WakeAfter("", 1900*time.Millisecond)
		must(t, err)
		_, err = r.WakeAfter("", time.Hour)
		must(t, err)
		pass(time.Second)
		if err := r.Sleep(t.Context(), within(time.Second)); !errors.Is(err, holds.ErrBusy) {
			t.Errorf("less than a second before that time: %v", err)
		}
		pass(time.Second)
		must(t, r.Sleep(t.Context(), within(time.Second)))
		s.expect(t, "0s awake", "1s idle until 1.9s", "2s asleep wakes")
		pass(time.Hour - 2*time.Second - 1)
		s.expect(t)
		pass(1)
		s.expect(t, "1h0m0s awake")
		if p.Frozen() {
			t.Error("it is frozen after that time")
		}
	})
}

// TestTimeWhileFallingAsleep: a time to wake at that comes while the processes are being stopped,
// and one that a program asks for right before it is stopped.
func TestTimeWhileFallingAsleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &processes{stopping: func(context.Context) error { pass(3 * time.Second); return nil }}
		r := holds.New(holds.Options{Processes: p})
		pass(time.Second)
		_, err := r.WakeAfter("", 2*time.Second)
		must(t, err)
		must(t, r.Sleep(t.Context(), within(time.Second)))
		synctest.Wait()
		if p.Frozen() {
			t.Error("it is frozen after the time that came while it fell asleep")
		}
		hold := r.BeginRequest("POST", "/holds")
		must(t, r.Sleep(t.Context(), holds.Condition{Idle: -1, Wakes: true})) // its time is up
		_, err = r.WakeAfter("", time.Minute)
		must(t, err)
		hold.End()
		pass(time.Minute - 1)
		if !p.isAsleep() {
			t.Error("it runs before its time")
		}
		pass(1)
		if p.Frozen() {
			t.Error("it is frozen after the time that was asked for while it fell asleep")
		}
	})
}

// TestThawThatFails: the request goes on, and the next one tries again.
func TestThawThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failures := 1
		p := &processes{thawing: func() error {
			if failures--; failures >= 0 {
				return errors.New("no")
			}
			return nil
		}}
		r := holds.New(holds.Options{Processes: p})
		pass(time.Second)
		must(t, r.Sleep(t.Context(), within(time.Second)))
		first := r.BeginRequest("GET", "/x")
		first.AwaitAwake(t.Context())
		if !p.isAsleep() {
			t.Fatal("it runs although it could not be thawed")
		}
		first.End()
		second := r.BeginRequest("GET", "/x")
		second.AwaitAwake(t.Context())
		if p.Frozen() {
			t.Error("the second request does not wake it")
		}
	})
}

// TestSleepWithoutWaking: requests do not wake it, and do not wait.
func TestSleepWithoutWaking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := new(processes)
		r := holds.New(holds.Options{Processes: p})
		_, err := r.WakeAfter("", time.Minute)
		must(t, err)
		pass(time.Second)
		must(t, r.Sleep(t.Context(), holds.Condition{Idle: time.Second}))
		hold := r.BeginRequest("GET", "/x")
		hold.AwaitAwake(t.Context())
		pass(time.Hour)
		if !p.isAsleep() {
			t.Error("a request or a time has woken it")
		}
		must(t, r.Sleep(t.Context(), within(time.Second))) // now there is a hold that does
		synctest.Wait()
		if p.Frozen() {
			t.Error("it sleeps with a hold")
		}
		must(t, r.Sleep(t.Context(), holds.Condition{Idle: -1, Wakes: true})) // in the middle of work
		pass(time.Hour)
		if !p.isAsleep() {
			t.Error("the hold that there was has woken it")
		}
		r.BeginRequest("GET", "/x").AwaitAwake(t.Context())
		if p.Frozen() {
			t.Error("another one has not")
		}
	})
}

// TestPauseOfASleep: nothing wakes it then but a thaw.
func TestPauseOfASleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := new(processes)
		r := holds.New(holds.Options{Processes: p})
		s := followSleep(t, r, time.Second)
		defer s.stop()
		pass(time.Second)
		must(t, r.Sleep(t.Context(), within(time.Second)))
		s.expect(t, "0s awake", "1s idle", "1s asleep wakes")
		must(t, r.Pause(t.Context()))
		s.expect(t, "1s awake")
		hold := r.BeginRequest("GET", "/x")
		hold.AwaitAwake(t.Context())
		hold.End()
		must(t, r.Thaw(true))
		if !p.Frozen() || p.isAsleep() || p.thaws != 0 {
			t.Errorf("frozen %t, asleep %t, thawed %d times", p.Frozen(), p.isAsleep(), p.thaws)
		}
		pass(time.Minute)
		if err := r.Sleep(t.Context(), within(time.Second)); !errors.Is(err, holds.ErrPaused) {
			t.Errorf("falling asleep: %v", err)
		}
		must(t, r.Thaw(false))
		if p.Frozen() {
			t.Error("it is frozen after the thaw")
		}
		s.expect(t, "2s idle")
		pass(time.Second)
		s.expect(t, "1m2s idle") // again: the thaw counts as work
		must(t, r.Sleep(t.Context(), within(time.Second)))
		must(t, r.Thaw(true))
		if p.Frozen() {
			t.Error("it is asleep after the thaw of a sleep")
		}
	})
}

// TestFreezeThatFails: the sandbox runs on, and requests wait for nothing.
func TestFreezeThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failure := errors.New("a process does not stop")
		p := &processes{stopping: func(context.Context) error { return failure }}
		r := holds.New(holds.Options{Processes: p})
		pass(time.Second)
		if err := r.Sleep(t.Context(), within(time.Second)); !errors.Is(err, failure) {
			t.Errorf("falling asleep: %v", err)
		}
		r.BeginRequest("GET", "/x").AwaitAwake(t.Context())
	})
}

// TestRandomSleeps: whatever begins and ends when, no request is served while the processes are
// stopped, each is served, and a sandbox is not asleep for good with a hold.
func TestRandomSleeps(t *testing.T) {
	seed := rand.Uint64()
	if text := os.Getenv(seedVariable); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		must(t, err)
	}
	t.Logf("%s=%d", seedVariable, seed)
	for i := range uint64(schedules) {
		synctest.Test(t, func(t *testing.T) {
			for _, fault := range runSleeps(t, rand.New(rand.NewPCG(seed, i))) {
				t.Errorf("schedule %d of %s=%d: %s", i, seedVariable, seed, fault)
			}
		})
		if t.Failed() {
			return
		}
	}
}

// runSleeps has clients send requests while a controller has the sandbox fall asleep, and returns
// what broke a rule.
func runSleeps(t *testing.T, random *rand.Rand) (faults []string) {
	var mu sync.Mutex
	fault := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		faults = append(faults, fmt.Sprintf(format, args...))
	}
	own := func() *rand.Rand { return rand.New(rand.NewPCG(random.Uint64(), 0)) }
	delay := func(random *rand.Rand, most int) { time.Sleep(time.Duration(random.IntN(most)) * time.Millisecond) }
	ofStops, ofThaws := own(), own()
	p := &processes{
		stopping: func(ctx context.Context) error {
			delay(ofStops, 40)
			if ofStops.IntN(4) > 0 {
				return ctx.Err()
			}
			return nil
		},
		thawing: func() error { delay(ofThaws, 10); return nil },
	}
	r := holds.New(holds.Options{Processes: p})
	ctx, stop := context.WithCancel(t.Context())
	var clients, others sync.WaitGroup
	for range 1 + random.IntN(3) {
		random := own()
		others.Go(func() {
			for ctx.Err() == nil {
				quiet := time.Duration(10+random.IntN(40)) * time.Millisecond
				switch err := r.Sleep(t.Context(), within(quiet)); {
				case err == nil || errors.Is(err, holds.ErrBusy) || errors.Is(err, context.Canceled):
				default:
					fault("falling asleep: %v", err)
				}
				if random.IntN(10) == 0 {
					if err := r.Thaw(true); err != nil {
						fault("thaw: %v", err)
					}
				}
				delay(random, 60)
			}
		})
	}
	for range 1 + random.IntN(6) {
		random := own()
		clients.Go(func() {
			for range 20 {
				delay(random, []int{2, 30, 200}[random.IntN(3)])
				hold := r.BeginRequest("GET", "/x")
				hold.AwaitAwake(t.Context())
				for range 3 {
					if p.Frozen() {
						fault("a request is served while the processes are stopped")
					}
					delay(random, 20)
				}
				hold.End()
			}
		})
	}
	clients.Wait()
	stop()
	others.Wait()
	if err := r.Thaw(true); err != nil || p.Frozen() {
		fault("in the end it is frozen: %v", err)
	}
	return faults
}

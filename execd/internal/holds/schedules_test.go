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

// schedules is how many random schedules are tried; the seed of each follows from the first one's.
const schedules = 100

// seedVariable is the environment variable with the seed of a run that has failed.
const seedVariable = "TEST_SEED"

// TestRandomSchedules: whatever begins and ends when, and however slowly events are written,
//
//   - no event says that the sandbox is idle while a hold is alive, or earlier than after the quiet
//     time;
//   - when a hold has begun, the last event of every watch is that the sandbox is busy, but for one
//     that was given up;
//   - events alternate, and a sandbox without holds is reported as idle in the end.
//
// The time is that of a bubble; the goroutines of the schedules run at the same time.
func TestRandomSchedules(t *testing.T) {
	seed := rand.Uint64()
	if text := os.Getenv(seedVariable); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		must(t, err)
	}
	t.Logf("%s=%d", seedVariable, seed)
	for i := range uint64(schedules) {
		synctest.Test(t, func(t *testing.T) {
			s := &schedule{registry: holds.New(holds.Options{Used: slowly}), ended: time.Now()}
			s.run(t, rand.New(rand.NewPCG(seed, i)))
			for _, fault := range s.faults {
				t.Errorf("schedule %d of %s=%d: %s", i, seedVariable, seed, fault)
			}
		})
		if t.Failed() {
			return
		}
	}
}

// slowly returns the processor time of a sandbox that does nothing, after a time in which holds
// begin and end.
func slowly() (time.Duration, error) {
	time.Sleep(5 * time.Millisecond)
	return 0, nil
}

// schedule is what is known of one run. Its clock stands still while a goroutine works, so that
// times are exact.
type schedule struct {
	registry *holds.Registry

	mu      sync.Mutex
	alive   int       // holds whose Begin has returned, and whose End was not called
	ended   time.Time // when End was last called
	watches []*written
	faults  []string
}

// written is what a watch has written.
type written struct {
	quiet time.Duration
	began time.Time
	idle  bool
	over  bool // it ended, or may have been given up
}

func (s *schedule) fault(format string, args ...any) {
	s.faults = append(s.faults, fmt.Sprintf(format, args...))
}

func (s *schedule) run(t *testing.T, random *rand.Rand) {
	ctx, stop := context.WithCancel(t.Context())
	var followers, workers sync.WaitGroup
	for range 1 + random.IntN(4) {
		w := &written{quiet: time.Duration(10+random.IntN(100)) * time.Millisecond, began: time.Now()}
		s.watches = append(s.watches, w)
		own := rand.New(rand.NewPCG(random.Uint64(), 0))
		watch, err := s.registry.Watch(w.quiet)
		must(t, err)
		followers.Go(func() { s.follow(ctx, watch, w, own) })
	}
	for range 1 + random.IntN(8) {
		own := rand.New(rand.NewPCG(random.Uint64(), 0))
		workers.Go(func() { s.work(own) })
	}
	workers.Wait()
	pass(5 * time.Second) // longer than every quiet time, and than every slow write
	s.mu.Lock()
	for i, w := range s.watches {
		if !w.idle && !w.over {
			s.fault("the last event of watch %d is not idle", i)
		}
	}
	s.mu.Unlock()
	stop()
	followers.Wait()
}

// work takes holds, some within others, with pauses of the order of the quiet times.
func (s *schedule) work(random *rand.Rand) {
	pause := func(most int) { time.Sleep(time.Duration(random.IntN(most*1000)) * time.Microsecond) }
	for range 20 {
		pause([]int{1, 20, 300}[random.IntN(3)])
		if random.IntN(10) == 0 {
			_, _ = s.registry.KeepAwake("", time.Second) // which nothing here waits for
		}
		hold := s.begin()
		pause(1 + random.IntN(50))
		if random.IntN(2) == 0 {
			inner := s.begin()
			pause(1 + random.IntN(150))
			s.end(inner)
		}
		s.end(hold)
	}
}

func (s *schedule) begin() *holds.Hold {
	hold := s.registry.Begin(holds.Command, "")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alive++
	for i, w := range s.watches {
		if w.idle && !w.over {
			s.fault("a hold has begun, and the last event of watch %d is idle", i)
		}
	}
	return hold
}

func (s *schedule) end(hold *holds.Hold) {
	s.mu.Lock()
	s.alive--
	s.ended = time.Now()
	s.mu.Unlock()
	hold.End()
}

func (s *schedule) follow(ctx context.Context, watch *holds.Watch, w *written, random *rand.Rand) {
	fails := random.IntN(4) == 0
	err := watch.Follow(ctx, silence, func(e holds.Event) error {
		if slow := random.IntN(10); slow == 0 {
			time.Sleep(time.Duration(random.IntN(450)) * time.Millisecond) // twice, idle and busy, within a second
		}
		broken := fails && random.IntN(20) == 0
		if broken && random.IntN(2) == 0 {
			s.mu.Lock()
			w.over = true // it will have been given up when it goes on
			s.mu.Unlock()
			time.Sleep(2 * time.Second)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case broken:
			w.over = true
			return errors.New("broken pipe")
		case e.Idle == w.idle:
			s.fault("an event that says idle %t follows another one", e.Idle)
		case e.Idle && s.alive > 0 && !w.over:
			s.fault("an idle event comes while %d holds are alive", s.alive)
		case e.Idle && (time.Since(s.ended) < w.quiet || time.Since(w.began) < w.quiet):
			s.fault("an idle event comes %v after the last hold, of %v", time.Since(s.ended), w.quiet)
		}
		w.idle = e.Idle
		return nil
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	w.over = true
	if errors.Is(err, holds.ErrGivenUp) && !fails {
		s.fault("a watch was given up that writes within a second")
	}
}

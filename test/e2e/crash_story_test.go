package e2e_test

import (
	"context"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"sandbox.internal/test/e2e/lives"
)

// giveUp is how long a test waits for something that must happen, however busy the machine is.
const giveUp = 3 * time.Minute

// TestCrashStory has clients make every kind of request, while the service is killed again and
// again and another program changes the containers. Each client records the answers that it got,
// and compares.
func TestCrashStory(t *testing.T) {
	t.Parallel()
	story := newStory(t)
	s := story.s
	ticking := story.cast(t, 1, "", 60) // expires
	renewed := story.cast(t, 2, "", 60) // would, if an acknowledged renewal were lost
	slow, open := startSlowRegistry(t, "")
	password := uuid.NewString()
	guarded, openGuarded := startSlowRegistry(t, password)
	arriving := story.cast(t, 3,
		slow.push(t, "story/scratch", lives.Build(t, "sandbox.internal/test/e2e/testdata/forever")), 600)
	revoked := story.cast(t, 4, arriving.image, 600)
	lost := story.cast(t, 5,
		guarded.push(t, "story/private", lives.Build(t, "sandbox.internal/test/e2e/testdata/forever")),
		600)
	lost.auth = password
	lives.Concurrently([]*player{ticking, renewed, arriving, revoked, lost}, (*player).begin)
	renewed.renew(10 * time.Minute)

	var actors []*player
	for i := range 6 {
		actors = append(actors, story.cast(t, 10+uint64(i), "", 600))
	}
	var playing sync.WaitGroup
	for _, p := range append(actors, arriving, renewed) {
		playing.Go(p.play)
	}
	for round := range 5 {
		pause(story.random, 3*time.Second)
		story.kill()
		if round%2 == 1 { // in the middle of a recovery too
			ctx, cancel := context.WithTimeout(t.Context(),
				time.Duration(story.random.Int64N(int64(time.Second))))
			s.bootUntil(ctx, t)
			cancel()
		}
		story.boot(t)
		if round == 2 {
			revoked.delete()
		}
	}
	close(story.over)
	playing.Wait()
	open()
	openGuarded()

	all := append(actors, ticking, renewed, arriving, revoked, lost)
	for _, p := range all {
		p.curtain()
	}
	if got := lost.last(); got.State != "Failed" || got.Reason != "IMAGE_PULL_ERROR" {
		t.Errorf("the private image: %+v, want IMAGE_PULL_ERROR", got)
	} else {
		lives.Contains(t, got.Message, "credentials are not stored")
	}
	story.checkBooks(t, all)
	story.checkEvents(t, all)
	story.loseDatabase(t, all)
}

// story is a service that is killed, and those who play with it.
type story struct {
	s      *service
	seed   uint64
	random *rand.Rand // of the one who kills
	line   atomic.Pointer[lives.Client]
	over   chan struct{}

	counts struct{ asked, unanswered, meddled atomic.Int64 }
}

// newStory begins a story. E2E_SEED in the environment repeats one, as far as the machine's own
// chance allows.
func newStory(t *testing.T) *story {
	t.Helper()
	seed, err := strconv.ParseUint(os.Getenv("E2E_SEED"), 10, 64)
	if err != nil {
		seed = rand.Uint64()
	}
	t.Logf("E2E_SEED=%d", seed)
	st := &story{s: start(t, lives.Plan{Program: true}), seed: seed,
		random: rand.New(rand.NewPCG(seed, 0)), over: make(chan struct{})}
	st.connect()
	t.Cleanup(func() {
		t.Logf("%d requests, %d of them unanswered, %d blows from outside", st.counts.asked.Load(),
			st.counts.unanswered.Load(), st.counts.meddled.Load())
	})
	return st
}

func (st *story) connect() {
	line := st.s.Client
	st.line.Store(&line)
}

func (st *story) kill() { st.s.Kill() }

func (st *story) boot(t *testing.T) {
	t.Helper()
	st.s.Boot(t)
	st.connect()
}

// pause is the time until the next blow, not a wait for something.
func pause(random *rand.Rand, atMost time.Duration) {
	time.Sleep(time.Duration(random.Int64N(int64(atMost))))
}

// try makes a request once, to the current service. It returns false when there was no answer.
func (st *story) try(method, path, body string, headers ...string) (lives.Answer, bool) {
	st.counts.asked.Add(1)
	got, err := st.line.Load().Try(method, path, body, headers...)
	if err != nil {
		st.counts.unanswered.Add(1)
	}
	return got, err == nil
}

// checkBooks compares what the service lists with what the players had, and with what the engine
// has.
func (st *story) checkBooks(t *testing.T, players []*player) {
	t.Helper()
	known := map[string]bool{}
	for _, p := range players {
		known[p.id] = true
		for _, id := range p.past {
			known[id] = true
		}
	}
	listed := st.s.Everything(t)
	for _, sandbox := range listed {
		if !known[sandbox.ID] {
			t.Errorf("no client created %s (%v)", sandbox.ID, sandbox.Metadata)
		}
	}
	if len(listed) != len(known) {
		t.Errorf("%d sandboxes are listed, %d were created", len(listed), len(known))
	}
	checkNoContainerWithoutRecord(t, st.s)
	t.Logf("%d sandboxes were created", len(known))
}

// loseDatabase deletes the database between two lives of the service. What lives at the engine is
// taken up as it was created; what has ended is removed.
func (st *story) loseDatabase(t *testing.T, players []*player) {
	t.Helper()
	running := 0
	for _, p := range players {
		if p.gone {
			continue
		}
		running++
		p.expectLabels() // renewals and patches since then are in the database alone
	}
	st.kill()
	if err := os.RemoveAll(st.s.Folder); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(),
		time.Duration(st.random.Int64N(int64(2*time.Second))))
	st.s.bootUntil(ctx, t)
	cancel()
	st.boot(t)
	for _, p := range players {
		switch {
		case p.gone:
			if got := st.s.Send(t, http.MethodGet, "/v1/sandboxes/"+p.id,
				""); got.Status != http.StatusNotFound {
				t.Errorf("%s had ended and is found in labels: %s", p.id, got)
			}
		case p.timeout == 60 && p.expires.Equal(p.original): // which is past by now
			p.end("Terminated", "EXPIRED")
			p.await()
		default:
			if p.look() && p.state == "Running" {
				st.s.Enter(t, p.id).Want(t, "echo usable", "usable\n")
			}
		}
	}
	if len(st.s.Everything(t)) != running {
		t.Errorf("%d sandboxes are listed, %d were running", len(st.s.Everything(t)), running)
	}
	checkNoContainerWithoutRecord(t, st.s)
	t.Logf("%d sandboxes were rebuilt from labels", running)
}

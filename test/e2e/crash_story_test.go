package e2e_test

import (
	"context"
	"math/rand/v2"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/random"
)

// TestCrashes has clients make every kind of request, while the service is killed again and
// again and another program changes the containers. Each client records the answers that it got,
// and compares.
func TestCrashes(t *testing.T) {
	t.Parallel()
	run := newCrashRun(t)
	s := run.s
	ticking := run.addClient(t, 1, "", 60) // expires
	renewed := run.addClient(t, 2, "", 60) // would, if an acknowledged renewal were lost
	slow, open := startSlowRegistry(t, "")
	password := uuid.NewString()
	guarded, openGuarded := startSlowRegistry(t, password)
	arriving := run.addClient(t, 3,
		slow.push(t, "story/scratch", conformance.Build(t, "sandbox.internal/test/e2e/testdata/forever")), 600)
	revoked := run.addClient(t, 4, arriving.image, 600)
	lost := run.addClient(t, 5,
		guarded.push(t, "story/private", conformance.Build(t, "sandbox.internal/test/e2e/testdata/forever")),
		600)
	lost.auth = password
	conformance.Concurrently([]*crashClient{ticking, renewed, arriving, revoked, lost}, (*crashClient).begin)
	renewed.renew(10 * time.Minute)

	var others []*crashClient
	for i := range 6 {
		others = append(others, run.addClient(t, 10+uint64(i), "", 600))
	}
	var playing sync.WaitGroup
	for _, p := range append(others, arriving, renewed) {
		playing.Go(p.run)
	}
	for round := range 5 {
		pause(run.random, 3*time.Second)
		run.kill()
		if round%2 == 1 { // in the middle of a recovery too
			ctx, cancel := context.WithTimeout(t.Context(),
				time.Duration(run.random.Int64N(int64(time.Second))))
			s.bootUntil(ctx, t)
			cancel()
		}
		run.boot(t)
		if round == 2 {
			revoked.delete()
		}
	}
	close(run.over)
	playing.Wait()
	open()
	openGuarded()

	all := append(others, ticking, renewed, arriving, revoked, lost)
	for _, p := range all {
		p.checkEnd()
	}
	if got := lost.last(); got.State != "Failed" || got.Reason != "IMAGE_PULL_ERROR" {
		t.Errorf("the private image: %+v, want IMAGE_PULL_ERROR", got)
	} else {
		conformance.Contains(t, got.Message, "credentials are not stored")
	}
	run.checkSandboxes(t, all)
	run.checkEvents(t, all)
	run.loseDatabase(t, all)
}

// crashRun is a service that is killed, and its clients.
type crashRun struct {
	s      *service
	seed   uint64
	random *rand.Rand // of the one who kills
	line   atomic.Pointer[conformance.Client]
	over   chan struct{}

	counts struct{ asked, unanswered, disturbed atomic.Int64 }
}

// newCrashRun begins a run. Its seed repeats one, as far as the machine's own chance allows.
func newCrashRun(t *testing.T) *crashRun {
	t.Helper()
	seed := random.Seed(t)
	st := &crashRun{s: start(t, conformance.Plan{Program: true}), seed: seed,
		random: rand.New(rand.NewPCG(seed, 0)), over: make(chan struct{})}
	st.connect()
	t.Cleanup(func() {
		t.Logf("%d requests, %d of them unanswered, %d blows from outside", st.counts.asked.Load(),
			st.counts.unanswered.Load(), st.counts.disturbed.Load())
	})
	return st
}

func (st *crashRun) connect() {
	line := st.s.Client
	st.line.Store(&line)
}

func (st *crashRun) kill() { st.s.Kill() }

func (st *crashRun) boot(t *testing.T) {
	t.Helper()
	st.s.Boot(t)
	st.connect()
}

// pause is the time until the next blow, not a wait for something.
func pause(random *rand.Rand, atMost time.Duration) {
	time.Sleep(time.Duration(random.Int64N(int64(atMost)))) // see above
}

// try makes a request once, to the current service. It returns false when there was no answer.
func (st *crashRun) try(method, path, body string, headers ...string) (conformance.Answer, bool) {
	st.counts.asked.Add(1)
	got, err := st.line.Load().Try(method, path, body, headers...)
	if err != nil {
		st.counts.unanswered.Add(1)
	}
	return got, err == nil
}

// checkSandboxes compares what the service lists with what the clients had, and with what the
// engine has.
func (st *crashRun) checkSandboxes(t *testing.T, clients []*crashClient) {
	t.Helper()
	known := map[string]bool{}
	for _, p := range clients {
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
func (st *crashRun) loseDatabase(t *testing.T, clients []*crashClient) {
	t.Helper()
	running := 0
	for _, p := range clients {
		if p.gone {
			continue
		}
		running++
		p.expectLabels() // renewals and patches since then are in the database alone
	}
	st.kill()
	if err := os.RemoveAll(st.s.Directory); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(),
		time.Duration(st.random.Int64N(int64(2*time.Second))))
	st.s.bootUntil(ctx, t)
	cancel()
	st.boot(t)
	for _, p := range clients {
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

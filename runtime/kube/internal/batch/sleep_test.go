package batch_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// sleepyExecd answers like the part of an execd that lets its sandbox sleep and wakes it.
type sleepyExecd struct {
	mu      sync.Mutex
	asleep  bool
	wakes   bool
	paused  bool
	refuses int           // how many freezes are NOT_IDLE yet
	since   time.Time     // of the last request
	asked   []string      // for freezes and thaws
	changed chan struct{} // closed at each change
}

func newSleepy() *sleepyExecd { return &sleepyExecd{since: time.Now(), changed: make(chan struct{})} }

// notify has those who follow look what has changed. The caller holds mu.
func (e *sleepyExecd) notify() {
	close(e.changed)
	e.changed = make(chan struct{})
}

// request is one that keeps the sandbox awake; it reports whether the sandbox runs then.
func (e *sleepyExecd) request() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.since = time.Now()
	if e.asleep && e.wakes {
		e.asleep = false
	}
	e.notify()
	return !e.asleep && !e.paused
}

// was returns what was asked for since the last call.
func (e *sleepyExecd) was() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	asked := strings.Join(e.asked, " ")
	e.asked = nil
	return asked
}

func (e *sleepyExecd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get(v1alpha1.HeaderExecdToken) != "secret" {
		http.Error(w, "no token", http.StatusUnauthorized)
		return
	}
	if r.URL.Path == "/idle/watch" {
		e.watch(w, r)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	query := r.URL.Query()
	e.asked = append(e.asked, strings.TrimPrefix(r.URL.RequestURI(), "/"))
	switch {
	case r.URL.Path == "/thaw":
		e.asleep, e.paused, e.since = false, false, time.Now()
	case len(query) == 0:
		e.asleep, e.paused = false, true
	case e.refuses > 0:
		e.refuses--
		e.since = time.Now()
		w.WriteHeader(http.StatusConflict)
		fmt.Fprint(w, `{"code":"NOT_IDLE","message":"the sandbox is not idle"}`)
	default:
		e.asleep, e.wakes = true, query.Get("wake") == "true"
	}
	e.notify()
}

// watch writes whether the sandbox sleeps, and that it is idle.
func (e *sleepyExecd) watch(w http.ResponseWriter, r *http.Request) {
	var milliseconds int64
	fmt.Sscan(r.URL.Query().Get("idleMilliseconds"), &milliseconds)
	quiet := time.Duration(milliseconds) * time.Millisecond
	w.Header().Set("Content-Type", "text/event-stream")
	began, last, idle := time.Now(), "", false
	for {
		e.mu.Lock()
		state := `{"type":"awake"}`
		if e.asleep {
			state = fmt.Sprintf(`{"type":"asleep","wake":%t}`, e.wakes)
		}
		since, changed := e.since, e.changed
		e.mu.Unlock()
		if since.Before(began) {
			since = began
		}
		if state != last {
			fmt.Fprintf(w, "data: %s\n\n", state)
			last, idle = state, false
		}
		switch due := time.Until(since.Add(quiet)); {
		case due > 0 && idle:
			fmt.Fprint(w, "data: {\"type\":\"busy\",\"kind\":\"request\"}\n\n")
			idle = false
		case due <= 0 && !idle:
			fmt.Fprint(w, "data: {\"type\":\"idle\"}\n\n")
			idle = true
		}
		w.(http.Flusher).Flush()
		timer := time.NewTimer(time.Hour)
		if !idle {
			timer.Reset(time.Until(since.Add(quiet)))
		}
		select {
		case <-changed:
		case <-timer.C:
		case <-r.Context().Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// sleepy creates the batch b, which sleeps as it says, and returns its execd.
func (p *place) sleepy(address string, sleep v1alpha1.Sleep, change func(b *v1alpha1.BatchSandbox)) *sleepyExecd {
	p.Helper()
	daemon := newSleepy()
	serveExecd(p, address, daemon)
	b := p.batch("b", 1)
	b.Spec.Template.Annotations["address"] = address
	b.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: v1alpha1.EnvExecdToken,
		Value: "secret"}}
	b.Spec.Sleep = &sleep
	if change != nil {
		change(b)
	}
	p.must(p.Create(p.Context(), b))
	return daemon
}

// inPhase waits for a phase and its reason.
func (p *place) inPhase(phase v1alpha1.Phase, reason string) *v1alpha1.BatchSandbox {
	p.Helper()
	return p.has("b", fmt.Sprintf("%s because of %s", phase, reason),
		func(b *v1alpha1.BatchSandbox) bool {
			return b.Status.Phase == phase && b.Status.Reason == reason
		})
}

// ranAfter waits until the batch is Running again, or was since.
func (p *place) ranAfter(before *v1alpha1.BatchSandbox) *v1alpha1.BatchSandbox {
	p.Helper()
	since := before.Status.History[len(before.Status.History)-1].Time
	return p.has("b", "woken", func(b *v1alpha1.BatchSandbox) bool {
		for _, change := range b.Status.History {
			if change.Phase == v1alpha1.PhaseRunning && change.Time.After(since.Time) {
				return true
			}
		}
		return false
	})
}

// passes is later for the batch b, which keeps its annotations.
func (p *place) passes(ahead time.Duration) {
	p.Helper()
	p.ahead.Store(int64(ahead))
	p.change("b", func(b *v1alpha1.BatchSandbox) {
		if b.Annotations == nil {
			b.Annotations = make(map[string]string)
		}
		b.Annotations["looked-at-after"] = ahead.String()
	})
}

func idleFor(milliseconds int64, action v1alpha1.IdleAction) *v1alpha1.Idle {
	return &v1alpha1.Idle{Action: action, Milliseconds: milliseconds}
}

func TestSleep(t *testing.T) {
	p := newPlace(t)
	p.control(nil, nil)
	daemon := p.sleepy("127.99.46.1", v1alpha1.Sleep{AutoResume: true, Idle: idleFor(50, v1alpha1.IdlePause)}, nil)
	b := p.inPhase(v1alpha1.PhasePaused, v1alpha1.ReasonIdle)
	if want := "Pending Running Pausing Paused"; history(b) != want {
		t.Errorf("history %q", history(b))
	}
	if got := daemon.was(); got != "freeze?idleMilliseconds=50&wake=true" {
		t.Errorf("asked for was %q", got)
	}
	if !daemon.request() {
		t.Error("a request does not wake it")
	}
	b = p.ranAfter(b)
	if woken := b.Status.History[4]; woken.Phase != v1alpha1.PhaseResuming ||
		woken.Reason != v1alpha1.ReasonWoken {
		t.Errorf("history %+v", b.Status.History)
	}
	p.inPhase(v1alpha1.PhasePaused, v1alpha1.ReasonIdle)

	p.change("b", func(b *v1alpha1.BatchSandbox) { b.Spec.Pause = true })
	b = p.inPhase(v1alpha1.PhasePaused, v1alpha1.ReasonUserPause)
	if daemon.request() {
		t.Error("a request wakes what was paused")
	}
	p.change("b", func(b *v1alpha1.BatchSandbox) { b.Spec.Pause = false })
	p.ranAfter(b)
	b = p.inPhase(v1alpha1.PhasePaused, v1alpha1.ReasonIdle)
	p.change("b", func(b *v1alpha1.BatchSandbox) { b.Spec.Sleep.AutoResume = false })
	p.eventually(func() error {
		daemon.mu.Lock()
		defer daemon.mu.Unlock()
		if daemon.wakes {
			return fmt.Errorf("requests wake it")
		}
		return nil
	})
	if daemon.request() {
		t.Error("a request wakes it that is not to")
	}
	p.change("b", func(b *v1alpha1.BatchSandbox) { b.Spec.Sleep.AutoResume = true })
	p.eventually(func() error {
		if !daemon.request() {
			return fmt.Errorf("no request wakes it")
		}
		return nil
	})
	p.ranAfter(b)
}

// TestSleepAcrossLeaders: what execd says holds, not what a controller remembers.
func TestSleepAcrossLeaders(t *testing.T) {
	p := newPlace(t)
	p.control(nil, nil)
	daemon := p.sleepy("127.99.46.2", v1alpha1.Sleep{AutoResume: true, Idle: idleFor(50, v1alpha1.IdlePause)}, nil)
	asleep := p.inPhase(v1alpha1.PhasePaused, v1alpha1.ReasonIdle)
	p.stop()
	daemon.was()
	p.control(nil, nil)
	p.change("b", func(b *v1alpha1.BatchSandbox) { b.Spec.Sleep.AutoResume = false }) // which a leader has execd take
	p.eventually(func() error {
		daemon.mu.Lock()
		defer daemon.mu.Unlock()
		if len(daemon.asked) == 0 {
			return fmt.Errorf("execd was asked for nothing")
		}
		return nil
	})
	p.change("b", func(b *v1alpha1.BatchSandbox) { b.Spec.Sleep.AutoResume = true })
	p.eventually(func() error {
		daemon.mu.Lock()
		defer daemon.mu.Unlock()
		if !daemon.asleep || !daemon.wakes {
			return fmt.Errorf("the sandbox is asleep: %t, and requests wake it: %t", daemon.asleep, daemon.wakes)
		}
		return nil
	})
	if b := p.inPhase(v1alpha1.PhasePaused, v1alpha1.ReasonIdle); history(b) != history(asleep) {
		t.Errorf("history %q, and was %q", history(b), history(asleep))
	}
	p.stop()
	if !daemon.request() {
		t.Error("a request does not wake it")
	}
	p.control(nil, nil)
	p.ranAfter(asleep)
}

// TestBusyWhenFrozen: a request comes between what execd reports and the freeze.
func TestBusyWhenFrozen(t *testing.T) {
	p := newPlace(t)
	daemon := p.sleepy("127.99.46.3", v1alpha1.Sleep{AutoResume: true, Idle: idleFor(50, v1alpha1.IdlePause)}, nil)
	daemon.refuses = 1
	p.control(nil, nil)
	b := p.inPhase(v1alpha1.PhasePaused, v1alpha1.ReasonIdle)
	if want := "Pending Running Pausing Resuming Running Pausing Paused"; history(b) != want ||
		b.Status.History[3].Reason != v1alpha1.ReasonWoken {
		t.Errorf("history %q", history(b))
	}
}

// lying takes execd's place: it reports that the sandbox sleeps, and that no request wakes it,
// whatever it was asked for.
type lying struct {
	refuses bool // to freeze
	mu      sync.Mutex
	freezes []time.Time
}

func (l *lying) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/idle/watch":
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: {\"type\":\"idle\"}\n\ndata: {\"type\":\"asleep\",\"wake\":false}\n\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	case "/freeze":
		l.mu.Lock()
		l.freezes = append(l.freezes, time.Now())
		l.mu.Unlock()
		if l.refuses {
			w.WriteHeader(http.StatusConflict)
			fmt.Fprint(w, `{"code":"NOT_IDLE","message":"the sandbox is not idle"}`)
		}
	}
}

// TestExecdThatLies: what has taken execd's place costs the controller and the API server a few
// requests per second.
func TestExecdThatLies(t *testing.T) {
	for address, refuses := range map[string]bool{"127.99.46.6": true, "127.99.46.7": false} {
		t.Run(fmt.Sprintf("refuses %t", refuses), func(t *testing.T) {
			p := newPlace(t)
			p.control(nil, nil)
			p.sleepy(address+"0", v1alpha1.Sleep{AutoResume: true, Idle: idleFor(50, v1alpha1.IdlePause)},
				func(b *v1alpha1.BatchSandbox) { b.Spec.Template.Annotations["address"] = address })
			daemon := &lying{refuses: refuses}
			serveExecd(p, address, daemon)
			p.eventually(func() error {
				daemon.mu.Lock()
				defer daemon.mu.Unlock()
				if n := len(daemon.freezes); n < 4 {
					return fmt.Errorf("execd was asked %d times to freeze the sandbox", n)
				}
				return nil
			})
			daemon.mu.Lock()
			defer daemon.mu.Unlock()
			// The first two may follow each other: one lets it fall asleep, one changes what wakes it.
			for i := 2; i < len(daemon.freezes); i++ {
				if pause := daemon.freezes[i].Sub(daemon.freezes[i-1]); pause < 900*time.Millisecond {
					t.Errorf("execd is asked again to freeze the sandbox after %v", pause)
				}
			}
		})
	}
}

// TestAsleepIsNotIdle: a sandbox that is to end once it is idle does not because another client has
// put it to sleep.
func TestAsleepIsNotIdle(t *testing.T) {
	p := newPlace(t)
	p.control(nil, nil)
	daemon := p.sleepy("127.99.46.8", v1alpha1.Sleep{AutoResume: true, Idle: idleFor(3600_000, v1alpha1.IdleDelete)}, nil)
	b := p.reaches("b", v1alpha1.PhaseRunning)
	daemon.mu.Lock()
	daemon.asleep, daemon.wakes = true, true
	daemon.notify()
	daemon.mu.Unlock()
	looks := p.looks.Load()
	p.passes(time.Minute)
	p.eventually(func() error {
		if p.looks.Load() < looks+2 {
			return fmt.Errorf("the controller has not looked at it since")
		}
		return nil
	})
	if after := p.reaches("b", v1alpha1.PhaseRunning); history(after) != history(b) {
		t.Errorf("history %q", history(after))
	}
}

func TestEndWhenIdle(t *testing.T) {
	p := newPlace(t)
	p.control(nil, nil)
	p.sleepy("127.99.46.4", v1alpha1.Sleep{Idle: idleFor(50, v1alpha1.IdleDelete)}, nil)
	if b := p.reaches("b", v1alpha1.PhaseTerminated); b.Status.Reason != v1alpha1.ReasonIdle {
		t.Errorf("%+v", b.Status)
	}
}

// TestSleepAtTimeout: at its expiry it sleeps, woken it lives again, and not woken it ends.
func TestSleepAtTimeout(t *testing.T) {
	p := newPlace(t)
	p.control(nil, nil)
	daemon := p.sleepy("127.99.46.5", v1alpha1.Sleep{AutoResume: true,
		Timeout: &v1alpha1.Timeout{KeptSeconds: 3600, LivesSeconds: 600}}, func(b *v1alpha1.BatchSandbox) {
		b.Spec.ExpireTime = &metav1.Time{Time: time.Now().Add(time.Hour)}
		b.Spec.TTLSecondsAfterFinished = new(int32(3600))
		b.Annotations = map[string]string{"another-program": "keeps this"}
	})
	p.reaches("b", v1alpha1.PhaseRunning)
	p.passes(2 * time.Hour)
	b := p.inPhase(v1alpha1.PhasePaused, v1alpha1.ReasonTimeout)
	if left := time.Until(b.Spec.ExpireTime.Time); left < 170*time.Minute || left > 181*time.Minute {
		t.Errorf("it is kept for %v", left)
	}
	if !daemon.request() {
		t.Error("a request does not wake it")
	}
	b = p.ranAfter(b)
	if left := time.Until(b.Spec.ExpireTime.Time); left < 120*time.Minute || left > 131*time.Minute ||
		b.Annotations[v1alpha1.AnnotationTimedOut] != "" || b.Annotations["another-program"] == "" {
		t.Errorf("it lives for %v, annotations %v", left, b.Annotations)
	}
	p.passes(4 * time.Hour)
	p.inPhase(v1alpha1.PhasePaused, v1alpha1.ReasonTimeout)
	p.passes(6 * time.Hour)
	if b := p.reaches("b", v1alpha1.PhaseTerminated); b.Status.Reason != v1alpha1.ReasonExpired {
		t.Errorf("%+v", b.Status)
	}
}

// TestSleepOfMany: the API server refuses it, as it does times out of range.
func TestSleepOfMany(t *testing.T) {
	p := newPlace(t)
	for message, change := range map[string]func(b *v1alpha1.BatchSandbox){
		"one replica at most":  func(b *v1alpha1.BatchSandbox) { b.Spec.Replicas = 2 },
		"spec.sleep.idle.mill": func(b *v1alpha1.BatchSandbox) { b.Spec.Sleep.Idle.Milliseconds = 49 },
		"spec.sleep.idle.acti": func(b *v1alpha1.BatchSandbox) { b.Spec.Sleep.Idle.Action = "Stop" },
	} {
		b := p.batch("b", 1)
		b.Spec.Sleep = &v1alpha1.Sleep{Idle: idleFor(50, v1alpha1.IdlePause)}
		change(b)
		if err := p.Create(t.Context(), b); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("it is refused with %v, want %q", err, message)
		}
	}
}

package cluster_test

import (
	"context"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/cluster/view"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

// daemon answers like the part of an execd that a cluster asks.
type daemon struct {
	mu    sync.Mutex
	asked []string
	token string
	fails bool
}

// serveDaemon has a daemon answer on execd's port of an address until the test ends.
func serveDaemon(t *testing.T, address string) *daemon {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address+":44772")
	must(t, err)
	d := new(daemon)
	server := &http.Server{Handler: d}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		_ = server.Close()
		serving.Wait()
	})
	return d
}

func (d *daemon) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked, d.token = append(d.asked, r.Method+" "+r.RequestURI), r.Header.Get(lifecycle.TokenHeader)
	switch {
	case d.fails:
		w.WriteHeader(http.StatusInternalServerError)
	case r.URL.Path == "/holds":
		_, _ = w.Write([]byte(`{"holds":[{"kind":"command","id":"c1","since":"2026-01-02T15:04:05Z"}],"idleMilliseconds":-7,"wakeAt":"2026-01-02T15:05:05Z"}`))
	default:
		_, _ = w.Write([]byte("{}"))
	}
}

// was returns what the daemon was asked for since the last call.
func (d *daemon) was() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	asked := strings.Join(d.asked, ", ")
	d.asked = nil
	return asked
}

// at gives a sandbox that is played an address.
func (s *space) at(t *testing.T, id, address string) {
	t.Helper()
	b := s.batch(t, id)
	b.Status.Addresses = []string{address}
	must(t, s.api.Status().Update(t.Context(), b))
}

func sleepySpec() lifecycle.Spec {
	spec := sampleSpec()
	settings := lifecycle.DefaultLifecycle()
	settings.OnIdle, settings.Idle, settings.OnTimeout = lifecycle.OnIdlePause, 1500*time.Millisecond, lifecycle.OnTimeoutPause
	spec.Lifecycle = &settings
	return spec
}

func TestLifecycleOfASandbox(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	c := s.replica(t)
	spec := sleepySpec()
	spec.Lifecycle.OnIdle = lifecycle.OnIdleHibernate
	_, err := c.Create(t.Context(), spec, lifecycle.CreateOptions{})
	refuses(t, err, lifecycle.KindUnsupported, "hibernate")
	made, err := c.Create(t.Context(), sleepySpec(), lifecycle.CreateOptions{Bounds: lifecycle.Bounds{MaxTimeout: 2 * time.Hour}})
	must(t, err)
	if made.Settings() != *sleepySpec().Lifecycle {
		t.Errorf("it is created with %+v", made.Settings())
	}
	sleep := s.batch(t, made.ID).Spec.Sleep
	lives := int64(sampleSpec().Timeout / time.Second)
	if sleep == nil || !sleep.AutoResume || sleep.Idle == nil || *sleep.Idle != (v1alpha1.Idle{Action: v1alpha1.IdlePause, Milliseconds: 1500}) ||
		sleep.Timeout == nil || *sleep.Timeout != (v1alpha1.Timeout{KeptSeconds: 7200, LivesSeconds: lives}) {
		t.Errorf("the resource says %+v", sleep)
	}
	feed, err := c.Events(t.Context(), lifecycle.EventSelection{SandboxID: made.ID})
	must(t, err)
	defer feed.Close()
	settings, err := c.UpdateLifecycle(t.Context(), made.ID, lifecycle.LifecycleChange{
		OnIdle: new(lifecycle.OnIdleDelete), OnTimeout: new(lifecycle.OnTimeoutDelete), AutoResume: new(false),
	}, 0)
	must(t, err)
	if got, _ := c.Get(t.Context(), made.ID); got.Settings() != settings || settings.OnIdle != lifecycle.OnIdleDelete || settings.Idle != 1500*time.Millisecond {
		t.Errorf("changed to %+v, it has %+v", settings, got.Settings())
	}
	sleep = s.batch(t, made.ID).Spec.Sleep
	if sleep == nil || sleep.AutoResume || sleep.Idle == nil || sleep.Idle.Action != v1alpha1.IdleDelete || sleep.Timeout != nil {
		t.Errorf("the resource says %+v", sleep)
	}
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
	defer cancel()
	for found := false; !found; {
		events, err := feed.Next(ctx)
		must(t, err)
		found = slices.ContainsFunc(events.Events, func(e lifecycle.Event) bool {
			return e.Type == lifecycle.EventLifecycle && e.Lifecycle != nil && *e.Lifecycle == settings
		})
	}
	_, err = c.UpdateLifecycle(t.Context(), made.ID, lifecycle.LifecycleChange{OnIdle: new(lifecycle.OnIdleHibernate)}, 0)
	refuses(t, err, lifecycle.KindUnsupported, "hibernate")
	_, err = c.UpdateLifecycle(t.Context(), made.ID, lifecycle.LifecycleChange{Idle: new(time.Millisecond)}, 0)
	refuses(t, err, lifecycle.KindInvalid, "idleSeconds")
	_, err = c.UpdateLifecycle(t.Context(), "none", lifecycle.LifecycleChange{}, 0)
	refuses(t, err, lifecycle.KindNotFound)
	must(t, c.Delete(t.Context(), made.ID))
	_, err = c.UpdateLifecycle(t.Context(), made.ID, lifecycle.LifecycleChange{}, 0)
	refuses(t, err, lifecycle.KindConflict, "Stopping")
}

// TestASandboxThatSleeps: the daemon wakes it, and requests are let through to that.
func TestASandboxThatSleeps(t *testing.T) {
	t.Parallel()
	const address = "127.99.47.1"
	s, d := newSpace(t), serveDaemon(t, address)
	c := s.replica(t)
	id := create(t, c, sleepySpec()).ID
	var table routes
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- view.FollowRoutes(ctx, view.RouteOptions{Kubeconfig: apiServer.Kubeconfig, Namespace: s.name}, &table)
	}()
	defer func() {
		stop()
		must(t, wait.For(t, "the end of the table", done))
	}()
	routed := func(want lifecycle.State) {
		t.Helper()
		wait.Until(t, "the route is that of a sandbox that is "+string(want), func() bool {
			route, _ := table.get(id)
			return route.State == want && route.Address != ""
		}, func() any { route, _ := table.get(id); return route })
	}
	s.play(t, id, v1alpha1.PhaseRunning, v1alpha1.ReasonContainerRunning, "")
	s.at(t, id, address)
	awaitState(t, c, id, lifecycle.StateRunning)
	wait.Until(t, "the view has the address", func() bool {
		location, err := c.Locate(t.Context(), id, 80)
		return err == nil && location.Endpoint.Host == address
	})
	must(t, c.Wake(t.Context(), id))
	holds, err := c.Holds(t.Context(), id)
	must(t, err)
	if len(holds.Holds) != 1 || holds.Holds[0].Kind != "command" || holds.Idle != 0 || d.token == "" {
		t.Errorf("the holds are %+v", holds)
	}

	s.play(t, id, v1alpha1.PhasePaused, v1alpha1.ReasonIdle, "asleep")
	awaitState(t, c, id, lifecycle.StatePaused)
	routed(lifecycle.StateRunning)
	d.was()
	must(t, c.Wake(t.Context(), id))
	must(t, c.Resume(t.Context(), id))
	if got, want := d.was(), "POST /thaw?onlyAsleep=true, POST /thaw?onlyAsleep=true"; got != want || s.batch(t, id).Spec.Pause {
		t.Errorf("the daemon was asked for %q, want %q", got, want)
	}
	if holds, err := c.Holds(t.Context(), id); err != nil || len(holds.Holds) != 0 || holds.WakeAt.IsZero() {
		t.Errorf("asleep, the holds are %+v, %v", holds, err)
	}
	d.mu.Lock()
	d.fails = true
	d.mu.Unlock()
	refuses(t, c.Wake(t.Context(), id), lifecycle.KindUnavailable, "cannot be woken", "500")

	s.play(t, id, v1alpha1.PhaseResuming, v1alpha1.ReasonWoken, "")
	awaitState(t, c, id, lifecycle.StateResuming)
	routed(lifecycle.StateRunning)
	s.play(t, id, v1alpha1.PhasePaused, v1alpha1.ReasonIdle, "asleep")
	awaitState(t, c, id, lifecycle.StatePaused)
	must(t, c.Pause(t.Context(), id))
	if got, _ := c.Get(t.Context(), id); got.Status.State != lifecycle.StatePausing || got.Status.Reason != lifecycle.ReasonUserPause {
		t.Errorf("after the pause of one that sleeps it is %+v", got.Status)
	}
	routed(lifecycle.StatePausing)
	s.play(t, id, v1alpha1.PhasePaused, v1alpha1.ReasonUserPause, "")
	awaitState(t, c, id, lifecycle.StatePaused)
	refuses(t, c.Wake(t.Context(), id), lifecycle.KindConflict, "Paused")
	must(t, c.Resume(t.Context(), id))
	if s.batch(t, id).Spec.Pause {
		t.Error("after the resume the resource says that it is paused")
	}
}

// TestResumeOfASandboxThatFallsAsleep: the sandbox may fall asleep only after its daemon was asked
// to wake it.
func TestResumeOfASandboxThatFallsAsleep(t *testing.T) {
	t.Parallel()
	const address = "127.99.47.2"
	s, d := newSpace(t), serveDaemon(t, address)
	c := s.replica(t)
	id := create(t, c, sleepySpec()).ID
	s.play(t, id, v1alpha1.PhasePausing, v1alpha1.ReasonTimeout, "asleep")
	s.at(t, id, address)
	wait.Until(t, "the view has the address", func() bool {
		location, err := c.Locate(t.Context(), id, 80)
		return err == nil && location.Endpoint.Host == address
	})
	resumed := make(chan error, 1)
	go func() { resumed <- c.Resume(t.Context(), id) }()
	const thaw = "POST /thaw?onlyAsleep=true"
	wait.Until(t, "the daemon is asked to wake the sandbox", func() bool { return d.was() == thaw })
	s.play(t, id, v1alpha1.PhasePaused, v1alpha1.ReasonTimeout, "asleep")
	must(t, wait.For(t, "the end of the resume", resumed))
	if got := d.was(); got != thaw {
		t.Errorf("once it is asleep the daemon is asked for %q, want %q", got, thaw)
	}
}

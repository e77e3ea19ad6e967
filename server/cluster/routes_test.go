package cluster_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/cluster"
	"sandbox.internal/server/cluster/view"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

// routes is an ingress's table.
type routes struct {
	mu  sync.Mutex
	all map[string]view.Route
}

func (r *routes) Replace(all []view.Route) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = make(map[string]view.Route)
	for _, route := range all {
		r.all[route.ID] = route
	}
}

func (r *routes) Update(route view.Route) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[route.ID] = route
}

func (r *routes) Forget(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, id)
}

func (r *routes) get(id string) (view.Route, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	route, ok := r.all[id]
	return route, ok
}

func TestRoutesOfAnIngress(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	c := s.replica(t)
	before := create(t, c, sampleSpec()).ID
	// One whose record the service would keep for less time than the resource says: with an
	// administrator's rights, too, an ingress only reads.
	failed := create(t, c, sampleSpec()).ID
	c.Close()
	s.play(t, failed, v1alpha1.PhaseFailed, v1alpha1.ReasonImagePullError, "no such image")
	unchanged := s.batch(t, failed).ResourceVersion
	var table routes
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- view.FollowRoutes(ctx, view.RouteOptions{Kubeconfig: apiServer.Kubeconfig, Namespace: s.name, Logger: zerolog.New(logOf{t})}, &table)
	}()
	wait.Until(t, "the sandbox has a row", func() bool { _, ok := table.get(before); return ok })
	c = s.replica(t, func(o *cluster.Options) { o.PendingFailureTTL = o.TerminatedRetention })
	after := create(t, c, sampleSpec()).ID
	s.play(t, after, v1alpha1.PhaseRunning, v1alpha1.ReasonContainerRunning, "execd answers")
	wait.Until(t, "the new one has a route", func() bool {
		route, _ := table.get(after)
		return route.State == lifecycle.StateRunning && route.Address == "192.0.2.7:44772"
	})
	if location, err := c.Locate(t.Context(), after, 80); err != nil {
		t.Error(err)
	} else if route, _ := table.get(after); route.Token != location.Token {
		t.Error("the route has another token than the service")
	}
	s.remove(t, after)
	wait.Until(t, "it is forgotten", func() bool { _, ok := table.get(after); return !ok })
	stop()
	must(t, wait.For(t, "the end of the table", done))
	if version := s.batch(t, failed).ResourceVersion; version != unchanged {
		t.Error("the ingress has written to a BatchSandbox")
	}
	if err := view.FollowRoutes(t.Context(), view.RouteOptions{Kubeconfig: "/no/such/file"}, &table); err == nil || !strings.Contains(err.Error(), "/no/such/file") {
		t.Errorf("without a configuration: %v", err)
	}
}

package ingress

import (
	"context"
	"time"

	"sandbox.internal/server/lifecycle"
)

// Source keeps the routes up to date from another origin than a lifecycle service, until ctx ends.
// It returns an error when it cannot start.
type Source func(ctx context.Context, routes *Routes) error

// Route is a sandbox as a Source reports it.
type Route struct {
	ID       string
	State    lifecycle.State
	Endpoint *Endpoint // nil while there is none
}

// Routes is the table of routes, as a Source changes it. It takes one call at a time.
type Routes struct {
	table   *table
	metrics *metrics
}

// Replace replaces the table by these sandboxes.
func (r *Routes) Replace(all []Route) {
	r.metrics.connected.Set(1)
	sandboxes := make([]observation, 0, len(all))
	for _, route := range all {
		sandboxes = append(sandboxes,
			observation{id: route.ID, state: route.State, endpoint: route.Endpoint})
	}
	r.table.replace(sandboxes, time.Time{}, time.Time{})
}

// Update adds or changes a sandbox.
func (r *Routes) Update(route Route) {
	r.metrics.events.Inc()
	r.table.update(observation{id: route.ID, state: route.State, endpoint: route.Endpoint})
}

// Forget removes a sandbox.
func (r *Routes) Forget(id string) {
	r.metrics.events.Inc()
	r.table.remove(id)
}

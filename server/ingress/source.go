package ingress

import (
	"context"

	"sandbox.internal/server/lifecycle"
)

// Source keeps the routes as somebody else says who is not a lifecycle service, until ctx ends. It returns an error when it cannot begin.
type Source func(ctx context.Context, routes *Routes) error

// Route is a sandbox as a Source knows it.
type Route struct {
	ID    string
	State lifecycle.State
	Place *Place // nil while it is nowhere
}

// Routes is the gateway's table for a Source. It is used by one goroutine.
type Routes struct {
	table   *table
	metrics *metrics
}

// Replace makes the table hold exactly these sandboxes.
func (r *Routes) Replace(all []Route) {
	r.metrics.connected.Set(1)
	sandboxes := make([]seen, 0, len(all))
	for _, route := range all {
		sandboxes = append(sandboxes, seen{id: route.ID, state: route.State, place: route.Place})
	}
	r.table.replace(sandboxes)
}

// Update notes a change of a sandbox, or a new one.
func (r *Routes) Update(route Route) {
	r.metrics.events.Inc()
	r.table.update(seen{id: route.ID, state: route.State, place: route.Place})
}

// Forget takes a sandbox out.
func (r *Routes) Forget(id string) {
	r.metrics.events.Inc()
	r.table.forget(id)
}

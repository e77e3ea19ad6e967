package host

import (
	"context"

	"sandbox.internal/server/lifecycle"
)

// Get implements lifecycle.Backend.
func (h *Host) Get(_ context.Context, id string) (lifecycle.Sandbox, error) {
	a, err := h.registry.get(id)
	if err != nil {
		return lifecycle.Sandbox{}, err
	}
	return a.snapshot().Sandbox, nil
}

// Read implements lifecycle.Backend. There is one replica.
func (h *Host) Read(ctx context.Context, id string) (lifecycle.Sandbox, error) { return h.Get(ctx, id) }

// List implements lifecycle.Backend.
func (h *Host) List(
	_ context.Context, filter lifecycle.Filter, page lifecycle.Page,
) (lifecycle.Listing, error) {
	if err := page.Validate(); err != nil {
		return lifecycle.Listing{}, err
	}
	r := &h.registry
	r.mu.RLock()
	defer r.mu.RUnlock()
	listing := lifecycle.Listing{Items: []lifecycle.Sandbox{}}
	certain := filter.Owner == nil && len(filter.Metadata) == 0 // the candidates are the matches
	for a := range r.candidates(filter) {
		if !certain && !filter.Match(&a.snapshot().Sandbox) {
			continue
		}
		// Divided, not multiplied: a page number may be as large as an integer gets.
		if listing.Total/page.Size == page.Number-1 {
			listing.Items = append(listing.Items, a.snapshot().Sandbox)
		}
		listing.Total++
	}
	return listing, nil
}

// Count returns the number of sandboxes by state, without states that have none.
func (h *Host) Count() map[lifecycle.State]int {
	count := make(map[lifecycle.State]int)
	h.registry.mu.RLock()
	defer h.registry.mu.RUnlock()
	for _, a := range h.registry.ordered {
		count[a.snapshot().Sandbox.Status.State]++
	}
	return count
}

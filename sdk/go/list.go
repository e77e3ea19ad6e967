package sandbox

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"slices"

	"sandbox.internal/gen/lifecycle"
)

const (
	// pageSize is how many sandboxes one request lists.
	pageSize = 100
	// listAttempts bounds how often a list is read because it changed meanwhile.
	listAttempts = 5
)

// ListOptions choose sandboxes. Nil chooses all.
type ListOptions struct {
	// States keeps sandboxes in one of these.
	States []string
	// Metadata keeps sandboxes that have all of these pairs.
	Metadata map[string]string
}

// List yields sandboxes, newest first, each once. All pages are read before the first is yielded, so
// that it may be deleted, and read again when the list changed meanwhile. What is yielded may have
// another state since.
func (c *Client) List(ctx context.Context, o *ListOptions) iter.Seq2[Info, error] {
	options := deref(o)
	return func(yield func(Info, error) bool) {
		params := &lifecycle.ListSandboxesParams{State: options.States, PageSize: new(pageSize)}
		if len(options.Metadata) > 0 {
			pairs := url.Values{}
			for key, value := range options.Metadata {
				pairs.Set(key, value)
			}
			params.Metadata = new(pairs.Encode())
		}
		found := make(map[string]Info)
		for range listAttempts {
			stable, err := c.readPages(ctx, params, found)
			if err != nil {
				yield(Info{}, err)
				return
			}
			if stable {
				break
			}
		}
		for _, info := range slices.SortedFunc(maps.Values(found), newestFirst) {
			if !yield(info, nil) {
				return
			}
		}
	}
}

// readPages adds a list to what is found, by id. It is not stable when the list changed between its
// pages: when a sandbox leaves one page, another moves to a page that was read already.
func (c *Client) readPages(ctx context.Context, params *lifecycle.ListSandboxesParams,
	found map[string]Info) (stable bool, err error) {
	totals := make(map[int]bool)
	for page := 1; ; page++ {
		params.Page = &page
		var list lifecycle.SandboxList
		err := c.call(ctx, repeatable, &list, func(ctx context.Context) (*http.Response, error) {
			return c.service.ListSandboxes(ctx, params)
		})
		if err != nil {
			return false, err
		}
		for _, info := range list.Items {
			found[info.ID] = info
		}
		totals[list.Pagination.TotalItems] = true
		if !list.Pagination.HasNextPage || len(list.Items) == 0 {
			return len(totals) == 1, nil
		}
	}
}

// newestFirst is the order of the contract.
func newestFirst(a, b Info) int {
	return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(a.ID, b.ID))
}

// EventOptions say where a stream of events begins. Nil means where the stream itself says.
type EventOptions struct {
	// After is the id of the last event that the caller has.
	After int64
	// FromStart begins with the first event that the service keeps.
	FromStart bool
	// OnOpen is called when the stream is connected, at first and after each cut: what is read of
	// the service from then on misses nothing that the stream does not bring. It may be nil.
	OnOpen func()
}

// after is the parameter of the contract.
func (o EventOptions) after() *int64 {
	if o.FromStart {
		return new(int64(0))
	}
	return optional(o.After)
}

// Events yields what happens to all sandboxes that the key may read, from now on unless o says
// otherwise. It ends with ctx, with an error, or when the caller stops. An event of type EventReset
// says that events are missing: read the sandboxes again.
func (c *Client) Events(ctx context.Context, o *EventOptions) iter.Seq2[Event, error] {
	options := deref(o)
	return events(ctx, &follower{
		client: c, what: "events", endless: true, onOpen: options.OnOpen,
		open: func(ctx context.Context, last string) (*http.Response, error) {
			return c.service.StreamEvents(ctx, &lifecycle.StreamEventsParams{
				After: options.after(), LastEventID: optional(last),
			})
		},
	}, isPing)
}

func isPing(e Event) bool { return e.Type == eventPing }

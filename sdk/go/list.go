package sandbox

import (
	"context"
	"iter"
	"net/http"
	"net/url"

	"sandbox.internal/gen/lifecycle"
)

// pageSize is how many sandboxes one request lists.
const pageSize = 100

// ListOptions choose sandboxes. Nil chooses all.
type ListOptions struct {
	// States keeps sandboxes in one of these.
	States []string
	// Metadata keeps sandboxes that have all of these pairs.
	Metadata map[string]string
}

// List yields sandboxes, newest first, over all pages. What is created meanwhile can make one be
// yielded again; it is left out then.
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
		seen := make(map[string]bool)
		for page := 1; ; page++ {
			params.Page = &page
			var list lifecycle.SandboxList
			err := c.call(ctx, repeatable, &list,
				func(ctx context.Context) (*http.Response, error) {
					return c.service.ListSandboxes(ctx, params)
				})
			if err != nil {
				yield(Info{}, err)
				return
			}
			for _, info := range list.Items {
				if seen[info.ID] {
					continue
				}
				seen[info.ID] = true
				if !yield(info, nil) {
					return
				}
			}
			if !list.Pagination.HasNextPage || len(list.Items) == 0 {
				return
			}
		}
	}
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

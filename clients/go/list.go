package sandbox

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"sandbox.internal/clients/go/lifecycle"
)

const (
	// pageSize is how many sandboxes one request lists at most.
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
	// Limit is how many sandboxes are listed at most; 0 means all.
	Limit int
}

// List yields sandboxes, newest first, each once. All pages are read before the first is yielded,
// so that it may be deleted, and read again when the list changed meanwhile. A yielded sandbox may
// have changed its state since.
func (c *Client) List(ctx context.Context, o *ListOptions) iter.Seq2[Info, error] {
	options := deref(o)
	return func(yield func(Info, error) bool) {
		size := pageSize
		if options.Limit > 0 {
			size = min(size, options.Limit)
		}
		params := &lifecycle.ListSandboxesParams{State: options.States, PageSize: &size}
		if len(options.Metadata) > 0 {
			params.Metadata = new(metadataFilter(options.Metadata))
		}
		found := make(map[string]Info)
		for range listAttempts {
			stable, err := c.readPages(ctx, params, options.Limit, found)
			if err != nil {
				yield(Info{}, err)
				return
			}
			if stable {
				break
			}
		}
		sorted := slices.SortedFunc(maps.Values(found), newestFirst)
		if options.Limit > 0 {
			sorted = sorted[:min(options.Limit, len(sorted))]
		}
		for _, info := range sorted {
			if !yield(info, nil) {
				return
			}
		}
	}
}

// readPages adds a list to what is found, by id, up to a limit. It is not stable when the list
// changed between its pages: when a sandbox leaves one page, another moves to a page that was read
// already. Pages become smaller when one is too large for an answer: each of its sandboxes may have
// more than a megabyte.
func (c *Client) readPages(ctx context.Context, params *lifecycle.ListSandboxesParams, limit int,
	found map[string]Info) (stable bool, err error) {
	totals := make(map[int]bool)
	for page := 1; ; page++ {
		params.Page = &page
		var list lifecycle.SandboxList
		err := c.call(ctx, repeatable, &list, func(ctx context.Context) (*http.Response, error) {
			return c.service.ListSandboxes(ctx, params)
		})
		if size := *params.PageSize; errors.Is(err, errTooLarge) && size > 1 {
			*params.PageSize, page = size/2, 0
			continue
		}
		if err != nil {
			return false, err
		}
		for _, info := range list.Items {
			found[info.ID] = info
		}
		totals[list.Pagination.TotalItems] = true
		all := !list.Pagination.HasNextPage || len(list.Items) == 0
		if all || limit > 0 && page**params.PageSize >= limit {
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
	// UntilNow ends the events with those that had happened when they were asked for.
	UntilNow bool
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
	return c.eventsAs(ctx, options, &follower{
		client: c, what: "events", endless: true, onOpen: options.OnOpen,
		open: func(ctx context.Context, last string) (*http.Response, error) {
			return c.service.StreamEvents(ctx, &lifecycle.StreamEventsParams{
				After: options.after(), LastEventID: optional(last),
			})
		},
	})
}

// eventsAs yields the events of a stream of sandboxes, for as long as the options say.
func (c *Client) eventsAs(ctx context.Context, options EventOptions,
	f *follower) iter.Seq2[Event, error] {
	if !options.UntilNow {
		return events(ctx, f, isPing)
	}
	return func(yield func(Event, error) bool) {
		newest, err := c.newestEvent(ctx)
		if err != nil {
			yield(Event{}, err)
			return
		}
		pings := 0
		f.onOpen = func() {
			pings = 0
			if options.OnOpen != nil {
				options.OnOpen()
			}
		}
		err = f.follow(ctx, func(data []byte) (bool, error) {
			event, err := decodeEvent[Event](data)
			if err != nil {
				return false, err
			}
			if isPing(event) {
				pings++
			} else if !yield(event, nil) {
				return false, errStopped
			}
			// The first ping of a connection comes after its first page, each other one in silence:
			// a replica of a service may be behind the one that said which event is the newest.
			if id, err := strconv.ParseInt(f.last, 10, 64); pings > 1 || err == nil && id >= newest {
				return false, errStopped
			}
			return false, nil
		})
		if !errors.Is(err, errStopped) {
			yield(Event{}, err)
		}
	}
}

// newestEvent returns the id of the newest event of the service. A stream from now on begins with
// it.
func (c *Client) newestEvent(ctx context.Context) (int64, error) {
	f := &follower{
		client: c, what: "events", endless: true,
		open: func(ctx context.Context, _ string) (*http.Response, error) {
			return c.service.StreamEvents(ctx, &lifecycle.StreamEventsParams{})
		},
	}
	err := f.follow(ctx, func([]byte) (bool, error) { return false, errStopped })
	if !errors.Is(err, errStopped) {
		return 0, err
	}
	return strconv.ParseInt(f.last, 10, 64)
}

func isPing(e Event) bool { return e.Type == eventPing }

// metadataFilter is the parameter of a list with pairs that all have to be there.
func metadataFilter(metadata map[string]string) string {
	pairs := url.Values{}
	for key, value := range metadata {
		pairs.Set(key, value)
	}
	return pairs.Encode()
}

package sandbox

import (
	"context"
	"iter"
	"net/http"

	"sandbox.internal/clients/go/lifecycle"
)

// The states of an [Activity]. Services may add more.
const (
	ActivityRunning   = lifecycle.ActivityEntryStateRunning
	ActivitySucceeded = lifecycle.ActivityEntryStateSucceeded
	ActivityFailed    = lifecycle.ActivityEntryStateFailed
)

// Activity returns what clients have done in the sandbox, by which key and through what client,
// those at the end that changed last. The daemon in the sandbox has recorded it: it is no audit
// log.
func (s *Sandbox) Activity(ctx context.Context) ([]Activity, error) {
	var list lifecycle.Activity
	err := s.client.call(ctx, repeatable, &list,
		func(ctx context.Context) (*http.Response, error) {
			return s.client.service.GetActivity(ctx, s.id, nil)
		})
	return list.Entries, err
}

// WatchActivity yields what clients have done, and goes on with what they do: each entry when it
// begins and again when it has ended. A stream that was cut is resumed.
func (s *Sandbox) WatchActivity(ctx context.Context) iter.Seq2[Activity, error] {
	return events(ctx, &follower{
		client: s.client, what: "activity of sandbox " + s.id, endless: true,
		open: func(ctx context.Context, last string) (*http.Response, error) {
			return s.client.service.WatchActivity(ctx, s.id,
				&lifecycle.WatchActivityParams{LastEventID: optional(last)})
		},
	}, func(Activity) bool { return false })
}

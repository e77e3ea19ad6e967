package rig

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"sandbox.internal/bench/measure"
)

// Follower reads the changes of state of all sandboxes as the service sends them.
type Follower struct {
	response *http.Response
	events   eventReader
}

// Follow begins with what happens next.
func (s *Service) Follow(ctx context.Context) (*Follower, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/v1/events", nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set(keyHeader, Key)
	response, err := Send(s.Client, request, http.StatusOK)
	if err != nil {
		return nil, err
	}
	return &Follower{response, newEventReader(response.Body)}, nil
}

// Close ends the reading.
func (f *Follower) Close() { f.response.Body.Close() }

// next returns the next change of state.
func (f *Follower) next() (id, to string, err error) {
	for {
		data, err := f.events.Next()
		if err != nil {
			return "", "", err
		}
		var event struct{ Type, SandboxID, To string }
		if err := json.Unmarshal(data, &event); err != nil {
			return "", "", fmt.Errorf("event %q: %w", data, err)
		}
		if event.Type == "state" {
			return event.SandboxID, event.To, nil
		}
	}
}

// Ended waits until every sandbox is Terminated, and calls late with how late each is, in
// milliseconds. None may end before its time.
func (f *Follower) Ended(expiries map[string]time.Time, late func(float64) error) error {
	for len(expiries) > 0 {
		id, to, err := f.next()
		if err != nil {
			return fmt.Errorf("%w: the end of %d sandboxes was not reported: %w", measure.ErrLost,
				len(expiries), err)
		}
		due, lives := expiries[id]
		if !lives || to == "Pending" || to == "Running" { // it was made
			continue
		}
		took := measure.Elapsed(due)
		if took < 0 {
			return fmt.Errorf("%w: a sandbox became %s %v ms before its time", measure.ErrLost, to, -took)
		}
		if to != "Terminated" {
			continue
		}
		delete(expiries, id)
		if err := late(took); err != nil {
			return err
		}
	}
	return nil
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// measureExpiry follows the events until every sandbox has ended, and takes how late a client hears of each: an event is told once it
// is durable and the container, if there was one, is gone. The floor is how late as many timers of the standard library are that are
// due at the same moments, so that what the machine does meanwhile hits both.
func (b *bench) measureExpiry(ctx context.Context, s *service, ids []string, expiries []time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/v1/events", nil)
	if err != nil {
		return err
	}
	request.Header.Set(keyHeader, key)
	response, err := send(s.client, request, http.StatusOK)
	if err != nil {
		return err
	}
	defer response.Body.Close()

	b.progress("waiting for %d sandboxes to expire", len(ids))
	lateness := make(chan float64, len(ids))
	living := make(map[string]time.Time, len(ids))
	for i, id := range ids {
		due := expiries[i]
		living[id] = due
		time.AfterFunc(time.Until(due), func() { lateness <- elapsed(due) })
	}
	var result pair
	for events := newEventReader(response.Body); len(living) > 0; {
		data, err := events.raw()
		if err != nil {
			return fmt.Errorf("%w: the end of %d sandboxes was not told: %w", errLost, len(living), err)
		}
		var event struct{ Type, SandboxID, To string }
		if err := json.Unmarshal(data, &event); err != nil {
			return fmt.Errorf("event %q: %w", data, err)
		}
		due, lives := living[event.SandboxID]
		if event.Type != "state" || !lives {
			continue
		}
		late := elapsed(due)
		if late < 0 {
			return fmt.Errorf("%w: a sandbox became %s %v ms before its time", errLost, event.To, -late)
		}
		if event.To == "Terminated" {
			result.ours.add(late)
			delete(living, event.SandboxID)
		}
	}
	for range ids {
		result.floor.add(<-lateness)
	}
	b.results[rowExpiry] = result
	return nil
}

package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"sandbox.internal/internal/slowread"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/wire/sse"
)

const (
	// idleHeaders bounds how long execd may take until it begins to report, or answers.
	idleHeaders = 10 * time.Second
	// longestIdleEvent bounds an event, in bytes; execd's have fewer than a hundred.
	longestIdleEvent = 4 << 10
	// idleBytes is how many bytes of a report are read per second, and at once. Those of execd are
	// far fewer, and what has taken its place must not cost the service its processor.
	idleBytes = 8 << 10
)

// WatchIdle calls handle for what an execd reports of its idleness, one call at a time,
// until handle returns an error, ctx ends or the report does; an error is never nil. It calls began
// first, once execd has begun to report. Idle is for how long nothing must have kept the sandbox
// awake.
func (p *Clients) WatchIdle(
	ctx context.Context, d Address, idle time.Duration, began func() error, handle func(lifecycle.IdleEvent) error,
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	query := url.Values{"idleMilliseconds": {strconv.FormatInt(idle.Milliseconds(), 10)}}
	response, err := p.ask(ctx, p.watcher, d, "/idle/watch?"+query.Encode())
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if kind, _, err := mime.ParseMediaType(response.Header.Get("Content-Type")); err != nil || kind != "text/event-stream" {
		return errors.New("execd answers GET /idle/watch with something else than a stream of events")
	}
	if err := began(); err != nil {
		return err
	}
	for events := sse.NewReader(slowread.New(ctx, response.Body, idleBytes), longestIdleEvent); ; {
		data, err := events.Next()
		if err != nil {
			return fmt.Errorf("execd's report of its idleness ended: %w", err)
		}
		var event struct {
			Type, Kind string
			WakeAt     time.Time
		}
		if err := json.Unmarshal(data, &event); err != nil {
			return errors.New("execd's report of its idleness is not in JSON")
		}
		if event.Type != "idle" && event.Type != "busy" {
			continue
		}
		reported := lifecycle.IdleEvent{Idle: event.Type == "idle", Kind: lifecycle.CutHoldText(event.Kind), WakeAt: event.WakeAt.UTC()}
		if err := handle(reported); err != nil {
			return err
		}
	}
}

// Holds returns what keeps its sandbox awake, as an execd says.
func (p *Clients) Holds(ctx context.Context, d Address) (lifecycle.Holds, error) {
	response, err := p.ask(ctx, p.asker, d, "/holds")
	if err != nil {
		return lifecycle.Holds{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return lifecycle.Holds{}, err
	}
	return lifecycle.ParseHolds(body)
}

// ask sends a GET to an execd, and returns the answer if it is 200.
func (p *Clients) ask(ctx context.Context, client *http.Client, d Address, path string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(d.Host, strconv.Itoa(d.Port))+path, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set(lifecycle.TokenHeader, d.Token)
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		response.Body.Close()
		return nil, fmt.Errorf("execd answers GET %s with %d", request.URL.Path, response.StatusCode)
	}
	return response, nil
}

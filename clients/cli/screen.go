package cli

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"sandbox.internal/clients/cli/internal/show"
	sandbox "sandbox.internal/clients/go"
)

// screen is the display of top: a stream of metrics for each running sandbox, and one of events
// for what begins and ends.
type screen struct {
	t *tool

	mu      sync.Mutex
	latest  map[string]usage
	watched map[string]context.CancelFunc
	streams sync.WaitGroup
}

func newScreen(t *tool) *screen {
	return &screen{t: t, latest: map[string]usage{}, watched: map[string]context.CancelFunc{}}
}

func (s *screen) run(ctx context.Context) error {
	c, err := s.t.connect()
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer s.streams.Wait()
	defer stop(nil)
	s.streams.Go(func() {
		err := error(nil)
		options := &sandbox.EventOptions{OnOpen: func() {
			if err := s.refresh(ctx); err != nil {
				stop(err)
			}
		}}
		for event, failure := range c.client.Events(ctx, options) {
			err = failure
			if err == nil && (event.Type == sandbox.EventState || event.Type == sandbox.EventReset) {
				err = s.refresh(ctx)
			}
			if err != nil {
				break
			}
		}
		stop(err)
	})
	ticker := time.NewTicker(redrawEvery)
	defer ticker.Stop()
	for {
		if err := s.draw(); err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// refresh watches what runs now and nothing else.
func (s *screen) refresh(ctx context.Context) error {
	boxes, err := s.t.running(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	gone := maps.Clone(s.watched)
	for _, box := range boxes {
		delete(gone, box.ID())
		if s.watched[box.ID()] != nil {
			continue
		}
		follow, cancel := context.WithCancel(ctx)
		s.watched[box.ID()] = cancel
		s.streams.Go(func() { s.follow(follow, box) })
	}
	for id, cancel := range gone {
		cancel()
		delete(s.watched, id)
		delete(s.latest, id)
	}
	return nil
}

func (s *screen) follow(ctx context.Context, box *sandbox.Sandbox) {
	for metrics, err := range box.WatchMetrics(ctx) {
		s.mu.Lock()
		if _, wanted := s.watched[box.ID()]; wanted && err == nil && ctx.Err() == nil {
			s.latest[box.ID()] = usage{box.ID(), nameOf(box.Info()), metrics}
		}
		s.mu.Unlock()
		if err != nil {
			return // the event of its end takes it off the screen
		}
	}
}

// draw prints as much of the table as the terminal has lines for.
func (s *screen) draw() error {
	s.mu.Lock()
	list := slices.Collect(maps.Values(s.latest))
	s.mu.Unlock()
	sortUsage(list)
	lines := 24
	if fd, ok := terminalOf(s.t.Stdout); ok {
		if _, rows, err := term.GetSize(fd); err == nil && rows > 0 {
			lines = rows
		}
	}
	var table bytes.Buffer
	if err := show.WriteTable(s.t.Printer, &table, usageView.Columns, list, s.t.width()); err != nil {
		return err
	}
	rows := strings.SplitAfter(table.String(), "\n")
	head := s.t.Shorten(fmt.Sprintf("%d sandboxes, %s", len(list), time.Now().Format(time.TimeOnly)),
		s.t.width())
	text := "\x1b[H\x1b[J" + head + "\n" + strings.Join(rows[:min(len(rows), max(1, lines-2))], "")
	_, err := fmt.Fprint(s.t.Stdout, text)
	return err
}

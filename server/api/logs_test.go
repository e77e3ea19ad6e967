package api_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/openapi/serve/listen"
	"sandbox.internal/server/api"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

// following is a backend whose sandbox prints a line and goes on until it ends.
type following struct {
	*backend
	ended   chan struct{}
	stopped error // what Logs returns when its context ends
}

func (f following) Logs(ctx context.Context, _ string, _ lifecycle.LogOptions, open func() io.Writer) error {
	if _, err := io.WriteString(open(), "begun\n"); err != nil {
		return err
	}
	select {
	case <-f.ended:
		return nil
	case <-ctx.Done():
		return f.stopped
	}
}

// TestFollowedLogWhenTheServiceStops: only the log of a sandbox that has ended is one that has
// ended.
func TestFollowedLogWhenTheServiceStops(t *testing.T) {
	for name, c := range map[string]struct {
		stops   bool
		stopped error
	}{
		"the sandbox ends":                      {false, nil},
		"the service stops":                     {true, context.Canceled},
		"the service stops, backend without it": {true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := following{newBackend(), make(chan struct{}), c.stopped}
			handler, err := api.New(api.Options{Backend: b, Logger: zerolog.Nop()})
			if err != nil {
				t.Fatal(err)
			}
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			served := make(chan error, 1)
			go func() {
				served <- listen.Serve(ctx, listener, handler, listen.Options{Logger: zerolog.Nop(), Grace: time.Minute})
			}()
			transport := new(http.Transport)
			defer transport.CloseIdleConnections()
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listener.Addr().String()+"/v1/sandboxes/"+b.sandbox.ID+"/logs?follow=true", nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := transport.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			if _, err := io.ReadFull(response.Body, make([]byte, len("begun\n"))); err != nil {
				t.Fatal(err)
			}
			if c.stops {
				stop()
			} else {
				close(b.ended)
			}
			rest, err := io.ReadAll(response.Body)
			if cut := errors.Is(err, io.ErrUnexpectedEOF); len(rest) > 0 || cut != c.stops {
				t.Errorf("the log ends with %q, %v", rest, err)
			}
			stop()
			if err := wait.For(t, "the end of the server", served); err != nil {
				t.Error(err)
			}
		})
	}
}

package ingress_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"sandbox.internal/server/ingress"
	"sandbox.internal/server/lifecycle"
)

// TestSource: an ingress without a lifecycle service serves the routes of a Source.
func TestSource(t *testing.T) {
	t.Parallel()
	daemon := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.URL.Path) }))
	t.Cleanup(daemon.Close)
	endpoint := &ingress.Endpoint{Address: strings.TrimPrefix(daemon.URL, "http://"), Path: "/proxy/", Token: token}
	steps, done := make(chan func(*ingress.Routes)), make(chan struct{})
	in := start(t, ingress.ModeHeader, func(s *ingress.Settings) {
		s.Source = func(ctx context.Context, routes *ingress.Routes) error {
			for {
				select {
				case step := <-steps:
					step(routes)
					done <- struct{}{}
				case <-ctx.Done():
					return nil
				}
			}
		}
	})
	step := func(do func(*ingress.Routes)) {
		steps <- do
		<-done
	}
	step(func(r *ingress.Routes) { r.Replace(nil) })
	in.get(t, "/x").wantProblem(t, http.StatusNotFound, "SANDBOX_NOT_FOUND")
	step(func(r *ingress.Routes) { r.Update(ingress.Route{ID: box, State: lifecycle.StateRunning}) })
	in.get(t, "/x").wantProblem(t, http.StatusServiceUnavailable, "SANDBOX_NOT_LOCATED")
	step(func(r *ingress.Routes) {
		r.Update(ingress.Route{ID: box, State: lifecycle.StateRunning, Endpoint: endpoint})
	})
	if got := in.get(t, "/x"); got.StatusCode != http.StatusOK || got.body != "/proxy/8000/x" {
		t.Errorf("%d %s", got.StatusCode, got.body)
	}
	step(func(r *ingress.Routes) { r.Forget(box) })
	in.get(t, "/x").wantProblem(t, http.StatusNotFound, "SANDBOX_NOT_FOUND")
	step(func(r *ingress.Routes) {
		r.Replace([]ingress.Route{{ID: box, State: lifecycle.StateRunning, Endpoint: endpoint}})
	})
	if got := in.get(t, "/y"); got.StatusCode != http.StatusOK {
		t.Errorf("%d %s", got.StatusCode, got.body)
	}
}

// TestSourceThatCannotBegin ends the ingress: it would refuse everything for ever.
func TestSourceThatCannotBegin(t *testing.T) {
	t.Parallel()
	broken := errors.New("no such cluster")
	settings := ingress.DefaultSettings()
	settings.Listen, settings.Admin, settings.Mode = "127.0.0.1:0", "", ingress.ModeURI
	settings.Source = func(context.Context, *ingress.Routes) error { return broken }
	app, err := ingress.New(settings, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	if err := app.Run(t.Context()); !errors.Is(err, broken) {
		t.Errorf("the ingress ended with %v", err)
	}
}

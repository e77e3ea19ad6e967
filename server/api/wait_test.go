package api_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	gen "sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/server/lifecycle"
)

func TestPreferWait(t *testing.T) {
	for _, tt := range []struct {
		headers []string
		want    time.Duration // 0: it is not heeded
	}{
		{[]string{"wait=5"}, 5 * time.Second},
		{[]string{"wait=1"}, time.Second},
		{[]string{"wait=60"}, time.Minute},
		{[]string{"wait=61"}, time.Minute},
		{[]string{"wait=4294967295"}, time.Minute},
		{[]string{`WAIT = "7" ; x=y`}, 7 * time.Second},
		{[]string{"respond-async, wait=3"}, 3 * time.Second},
		{[]string{"respond-async", "wait=3"}, 3 * time.Second}, // two headers
		{[]string{"wait=2, wait=9"}, 2 * time.Second},
		{[]string{"wait=x, wait=9"}, 0}, // the first one counts
		{nil, 0},
		{[]string{""}, 0},
		{[]string{"wait"}, 0},
		{[]string{"wait="}, 0},
		{[]string{"wait=0"}, 0},
		{[]string{"wait=-1"}, 0},
		{[]string{"wait=1.5"}, 0},
		{[]string{"wait=99999999999999999999"}, 0},
		{[]string{`wait="`}, 0},
		{[]string{"waiting=5"}, 0},
		{[]string{",;=,"}, 0},
	} {
		t.Run(strings.Join(tt.headers, " | "), func(t *testing.T) {
			b := newBackend()
			b.settled = b.sandbox
			b.settled.Status.State = lifecycle.StateRunning
			b.settled.Stages = []lifecycle.StageTime{{Stage: lifecycle.StageAccepted, At: birth}, {Stage: lifecycle.StagePulled, At: birth.Add(1500 * time.Microsecond)}}
			s := serve(t, b)
			prefer := func(_ context.Context, r *http.Request) error {
				r.Header["Prefer"] = tt.headers
				return nil
			}
			id := b.sandbox.ID
			created, err := s.client.CreateSandboxWithResponse(t.Context(), nil, createRequest(), prefer)
			if err != nil {
				t.Fatal(err)
			}
			read, err := s.client.GetSandboxWithResponse(t.Context(), id, nil, prefer)
			if err != nil {
				t.Fatal(err)
			}
			deleted, err := s.client.DeleteSandboxWithResponse(t.Context(), id, nil, prefer)
			if err != nil {
				t.Fatal(err)
			}
			paused, err := s.client.PauseSandboxWithResponse(t.Context(), id, nil, gen.PauseSandboxRequest{}, prefer)
			if err != nil {
				t.Fatal(err)
			}
			resumed, err := s.client.ResumeSandboxWithResponse(t.Context(), id, nil, prefer)
			if err != nil {
				t.Fatal(err)
			}
			if created.JSON202 == nil || read.JSON200 == nil {
				t.Fatalf("create %s, get %s", created.Status(), read.Status())
			}
			state, applied, waited := "Pending", "", []time.Duration(nil)
			if tt.want > 0 {
				state, applied, waited = "Running", "wait", slices.Repeat([]time.Duration{tt.want}, 5)
			}
			if created.JSON202.Status.State != state || read.JSON200.Status.State != state {
				t.Errorf("states %s and %s, want %s", created.JSON202.Status.State, read.JSON200.Status.State, state)
			}
			if !slices.Equal(b.waited, waited) {
				t.Errorf("waited %v, want %v", b.waited, waited)
			}
			for _, r := range []*http.Response{created.HTTPResponse, read.HTTPResponse, deleted.HTTPResponse, paused.HTTPResponse, resumed.HTTPResponse} {
				if got := r.Header.Get("Preference-Applied"); got != applied {
					t.Errorf("%s %s: Preference-Applied %q, want %q", r.Request.Method, r.Request.URL.Path, got, applied)
				}
			}
			timing := created.HTTPResponse.Header.Get("Server-Timing")
			if !strings.HasPrefix(timing, "decode;dur=") || strings.Contains(timing, "pulled;dur=1.500") != (tt.want > 0) || strings.Contains(timing, "accepted") {
				t.Errorf("Server-Timing: %q", timing)
			}
		})
	}
}

// What was done stays done when the sandbox is forgotten during the wait.
func TestPreferWaitForAForgottenSandbox(t *testing.T) {
	b := newBackend()
	b.settleErr = lifecycle.NotFound(b.sandbox.ID)
	s := serve(t, b)
	wait := "wait=9"
	r, err := s.client.DeleteSandboxWithResponse(t.Context(), b.sandbox.ID, &gen.DeleteSandboxParams{Prefer: &wait})
	if err != nil || r.StatusCode() != http.StatusNoContent || r.HTTPResponse.Header.Get("Preference-Applied") != "" {
		t.Errorf("%s, %v", r.Status(), err)
	}
}

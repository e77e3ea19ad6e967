package sandboxes

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/rig"
)

// slow answers at once, but for the requests of these numbers, which it keeps for half a second.
type slow struct {
	at   map[int]bool
	seen int
}

func (s *slow) RoundTrip(request *http.Request) (*http.Response, error) {
	s.seen++
	if s.at[s.seen] {
		select {
		case <-time.After(500 * time.Millisecond):
		case <-request.Context().Done():
			return nil, request.Context().Err()
		}
	}
	return &http.Response{StatusCode: http.StatusOK, Request: request,
		Body: io.NopCloser(strings.NewReader("x"))}, nil
}

// TestReadsThatWait: an answer that is late delays those that would have been asked for meanwhile,
// and they count.
func TestReadsThatWait(t *testing.T) {
	for name, tc := range map[string]struct {
		slow  map[int]bool
		count int
		p99   time.Duration
	}{
		"none slow":                  {nil, 1001, 0},
		"four of a thousand":         {map[int]bool{100: true, 250: true, 400: true, 600: true}, 1001, 490 * time.Millisecond},
		"the one that ends the work": {map[int]bool{951: true}, 1001, 450 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				from := rig.Getter{URL: "http://slow", Client: &http.Client{
					Transport: &slow{at: tc.slow}}}
				took, err := readWhile(t.Context(), from, []byte("x"), func(context.Context) error {
					time.Sleep(5 * time.Second)
					return nil
				})
				p99 := sampleOf(0, took...).P99(measure.Lower)
				if err != nil || len(took) != tc.count ||
					p99 != float64(tc.p99/time.Millisecond) {
					t.Errorf("%d reads with a p99 of %v ms: %v", len(took), p99, err)
				}
			})
		})
	}
}

// TestReadsEndWithTheWork: what ends the work ends the reads, and a wrong answer ends the work.
func TestReadsEndWithTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := rig.Getter{URL: "http://slow", Client: &http.Client{Transport: &slow{}}}
		broken := errors.New("broken")
		_, err := readWhile(t.Context(), from, []byte("x"), func(context.Context) error {
			time.Sleep(time.Second)
			return broken
		})
		if !errors.Is(err, broken) {
			t.Errorf("work that fails: %v", err)
		}
		_, err = readWhile(t.Context(), from, []byte("y"), func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		})
		if !errors.Is(err, measure.ErrLost) {
			t.Errorf("a wrong answer: %v", err)
		}
	})
}

// sampleOf returns a sample of these values, and of as many attempts that failed.
func sampleOf(failed int, values ...float64) measure.Sample {
	var s measure.Sample
	for _, value := range values {
		s.Add(value)
	}
	s.Attempts += failed
	return s
}

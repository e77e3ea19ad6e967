package rig

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"sandbox.internal/bench/measure"
)

// Getter is one client that asks for the same thing again and again.
type Getter struct {
	Client *http.Client
	URL    string
	Header http.Header
}

// Open sends the request and returns the response.
func (g Getter) Open(ctx context.Context) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, g.URL, nil)
	if err != nil {
		return nil, err
	}
	for name, values := range g.Header {
		request.Header[name] = values
	}
	return Send(g.Client, request, http.StatusOK)
}

// Get returns the answer.
func (g Getter) Get(ctx context.Context) ([]byte, error) {
	response, err := g.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(response.Body)
}

// perRound is how many requests make one value of a rate.
const perRound = 500

// Rate is the number of answers a second of one client, each of which is want.
func (g Getter) Rate(ctx context.Context, want []byte, each *measure.Requests) (float64, error) {
	began := time.Now()
	for range perRound {
		if err := each.Time(func() error { return g.Expect(ctx, want) }); err != nil {
			return 0, err
		}
	}
	return perRound / time.Since(began).Seconds(), nil
}

// Expect asks once. Another answer than want is lost data.
func (g Getter) Expect(ctx context.Context, want []byte) error {
	answer, err := g.Get(ctx)
	if err == nil && !bytes.Equal(answer, want) {
		err = fmt.Errorf("%w: instead of %.500s: %.500s", measure.ErrLost, want, answer)
	}
	return err
}

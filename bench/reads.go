package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

// getter is one client that asks for the same thing again and again.
type getter struct {
	client *http.Client
	url    string
	header http.Header
}

// open sends the request and returns the response.
func (g getter) open(ctx context.Context) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, g.url, nil)
	if err != nil {
		return nil, err
	}
	for name, values := range g.header {
		request.Header[name] = values
	}
	return send(g.client, request, http.StatusOK)
}

// get returns the answer.
func (g getter) get(ctx context.Context) ([]byte, error) {
	response, err := g.open(ctx)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(response.Body)
}

// perRound is how many requests make one value of a rate.
const perRound = 500

// rate is the number of answers a second of one client, each of which is want.
func (g getter) rate(ctx context.Context, want []byte, each *requests) (float64, error) {
	began := time.Now()
	for range perRound {
		if err := each.time(func() error { return g.expect(ctx, want) }); err != nil {
			return 0, err
		}
	}
	return perRound / time.Since(began).Seconds(), nil
}

// expect asks once. Another answer than want is lost data.
func (g getter) expect(ctx context.Context, want []byte) error {
	answer, err := g.get(ctx)
	if err == nil && !bytes.Equal(answer, want) {
		err = fmt.Errorf("%w: instead of %.500s: %.500s", errLost, want, answer)
	}
	return err
}

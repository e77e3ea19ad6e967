package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"sandbox.internal/wire/sandboxhttp"
)

const (
	// maxError and maxMessage bound an error's body and text, in bytes.
	maxError   = 64 << 10
	maxMessage = 8 << 10

	// attempts is how often a request is sent at most.
	attempts = 5
	// maxRetryAfter is the longest that a request waits because the service asks for it.
	maxRetryAfter = 30 * time.Second
	// firstPause and maxPause are between attempts; the pause doubles.
	firstPause = 100 * time.Millisecond
	maxPause   = 2 * time.Second
)

// repetition says when a request may be sent again.
type repetition int

const (
	// never: its body can be read once.
	never repetition = iota
	// once: only when it certainly had no effect, because there was no connection, or because the
	// service refused it for its rate.
	once
	// repeatable: doing it twice is the same as doing it once.
	repeatable
)

// send sends a request until it succeeds or may not be sent again. The answer is a success, and its
// body is the caller's to close.
func (c *Client) send(ctx context.Context, again repetition,
	request func(context.Context) (*http.Response, error)) (*http.Response, error) {
	pause := firstPause
	for attempt := 1; ; attempt++ {
		response, err := request(ctx)
		if err == nil && response.StatusCode < 300 {
			return response, nil
		}
		wait := pause
		if err == nil {
			failure := errorOf(response)
			_ = response.Body.Close()
			err = failure
			wait = max(wait, failure.RetryAfter)
		}
		if attempt == attempts || wait > maxRetryAfter || ctx.Err() != nil || !mayRepeat(err, again) {
			return nil, err
		}
		if err := sleep(ctx, wait); err != nil {
			return nil, err
		}
		pause = min(2*pause, maxPause)
	}
}

// mayRepeat reports whether a failed request may be sent again, as long as its context has not
// ended. A time limit that is not the context's, such as that of a connection, is a failure like
// others.
func mayRepeat(err error, again repetition) bool {
	if again == never || sandboxhttp.Permanent(err) {
		return false
	}
	var failure *Error
	if errors.As(err, &failure) {
		switch failure.Status {
		case http.StatusTooManyRequests:
			return true
		case http.StatusConflict: // with a state that is about to change
			return failure.RetryAfter > 0
		case http.StatusServiceUnavailable:
			return again == repeatable
		case http.StatusBadGateway:
			// A port without a server stays so; a daemon may just be starting again.
			return again == repeatable && failure.Code != "PORT_NOT_LISTENING"
		}
		return false
	}
	return again == repeatable || notConnected(err)
}

// call sends a request and decodes the answer into result, unless that is nil.
func (c *Client) call(ctx context.Context, again repetition, result any,
	request func(context.Context) (*http.Response, error)) error {
	// An answer that breaks off is like none at all.
	for attempt := 1; ; attempt++ {
		response, err := c.send(ctx, again, request)
		if err != nil {
			return err
		}
		data, err := readBounded(response.Body, c.maxAnswer)
		_ = response.Body.Close()
		switch {
		case err == nil:
			return decode(data, result)
		case attempt == attempts || again != repeatable || ctx.Err() != nil ||
			errors.Is(err, errTooLarge):
			return err
		}
	}
}

// decode reads an answer in JSON into result, unless that is nil or there is nothing to read.
func decode(data []byte, result any) error {
	if result == nil || len(data) == 0 {
		return nil
	}
	if err := json.Unmarshal(data, result); err != nil {
		return fmt.Errorf("the answer is not what the contract says: %w", err)
	}
	return nil
}

// readBounded reads a body to its end, up to a bound.
func readBounded(body io.Reader, limit int) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(body, int64(limit)+1))
	if len(data) > limit {
		return data[:limit], fmt.Errorf("%w: more than %d bytes", errTooLarge, limit)
	}
	return data, err
}

// sleep waits, or returns the error of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

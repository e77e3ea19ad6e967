package sandbox

import (
	"context"
	"net/http"
	"time"
)

const (
	// minPollPause and maxPollPause bound the pauses between two polls of a port; they grow.
	minPollPause = 50 * time.Millisecond
	maxPollPause = time.Second
)

// WaitForPort waits until a server in the sandbox listens on a port: it sends GET / there until
// something takes the connection, whatever it answers.
func (s *Sandbox) WaitForPort(ctx context.Context, port int) error {
	for pause := minPollPause; ; pause = min(2*pause, maxPollPause) {
		listens, err := s.listens(ctx, port)
		if listens || err != nil {
			return err
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// listens reports whether a server listens on a port.
func (s *Sandbox) listens(ctx context.Context, port int) (bool, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.ProxyURL(port)+"/", nil)
	if err != nil {
		return false, err
	}
	if err := s.client.authorize(ctx, request); err != nil {
		return false, err
	}
	response, err := s.client.http.Do(request)
	if err != nil {
		if mayRepeat(err, repeatable) {
			return false, nil
		}
		return false, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode < 400 {
		return true, nil
	}
	failure := errorOf(response)
	switch failure.Code {
	case "PORT_NOT_LISTENING":
		return false, nil
	case "PORT_NOT_ANSWERING": // it listens, and does not speak HTTP
		return true, nil
	case "SANDBOX_NOT_FOUND", "UNAUTHORIZED", "FORBIDDEN", "CONFLICT", "SANDBOX_NOT_ANSWERING",
		"RATE_LIMITED", "SERVICE_UNAVAILABLE", "INVALID_REQUEST_BODY":
		if failure.RetryAfter > 0 && failure.RetryAfter < maxRetryAfter {
			return false, nil
		}
		return false, failure
	}
	return true, nil
}

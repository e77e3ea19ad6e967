package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"syscall"
)

// maxErrorBody bounds how much of an answer that is no success is read, in bytes.
const maxErrorBody = 64 << 10

// statusError is an answer with another status than the contract's success.
type statusError struct {
	status    int
	code      string // empty when the body is none of our error bodies
	message   string
	requestID string
}

func (e *statusError) Error() string {
	text := fmt.Sprintf("status %d", e.status)
	if e.code != "" {
		text += " " + e.code
	}
	if e.message != "" {
		text += ": " + e.message
	}
	if e.requestID != "" {
		text += " (X-Request-ID " + e.requestID + ")"
	}
	return text
}

// decode reads an answer of a generated client: its JSON body when the status is
// want, a [statusError] otherwise. It closes the body.
func decode[T any](response *http.Response, err error, want int) (T, error) {
	var value T
	if err := expect(response, err, want); err != nil {
		return value, err
	}
	defer closeBody(response)
	if err := json.NewDecoder(response.Body).Decode(&value); err != nil {
		return value, fmt.Errorf("the body of the answer (status %d): %w", want, err)
	}
	return value, nil
}

// accept is decode for an answer whose body says nothing.
func accept(response *http.Response, err error, want int) error {
	if err := expect(response, err, want); err != nil {
		return err
	}
	closeBody(response)
	return nil
}

// expect leaves the body open when the status is want, and closes it otherwise. It is
// for answers that are streams; it takes a client's two results to spare each caller
// the first check.
func expect(response *http.Response, err error, want int) error {
	if err != nil {
		if errors.Is(err, syscall.ECONNREFUSED) {
			return fmt.Errorf("%w; is the service running, and is --url right?", err)
		}
		return err
	}
	if response.StatusCode == want {
		return nil
	}
	defer closeBody(response)
	// A body that breaks off still leaves a status to report.
	body, _ := io.ReadAll(io.LimitReader(response.Body, maxErrorBody))
	problem := &statusError{status: response.StatusCode,
		requestID: response.Header.Get("X-Request-ID")}
	var parsed struct{ Code, Message string }
	if json.Unmarshal(body, &parsed) == nil && parsed.Message != "" {
		problem.code, problem.message = parsed.Code, parsed.Message
	} else {
		// Not from our services, for instance from a proxy in between.
		problem.message = string(bytes.ToValidUTF8(bytes.TrimSpace(body[:min(len(body), 300)]),
			[]byte("?")))
	}
	if response.StatusCode < http.StatusBadRequest {
		problem.message = fmt.Sprintf("expected status %d", want)
	}
	return problem
}

// closeBody reads what is left first, so that the connection can be used again.
func closeBody(response *http.Response) {
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, maxErrorBody))
	_ = response.Body.Close()
}

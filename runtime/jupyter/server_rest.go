package jupyter

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"sandbox.internal/runtime/kernel"
)

// maxAnswer is how many bytes of an answer of the REST API are read.
const maxAnswer = 4 << 20

// statusError is an answer of the server that says no.
type statusError struct {
	status  int
	message string
}

func (e *statusError) Error() string {
	text := fmt.Sprintf("the Jupyter Server answered %d %s", e.status, http.StatusText(e.status))
	if e.message != "" {
		text += ": " + e.message
	}
	if e.refused() {
		text += " (is --jupyter-token right?)"
	}
	return text
}

// refused reports whether the server rejected the token.
func (e *statusError) refused() bool {
	return e.status == http.StatusUnauthorized || e.status == http.StatusForbidden ||
		e.status == http.StatusFound
}

func isStatus(err error, status int) bool {
	answered := (*statusError)(nil)
	return errors.As(err, &answered) && answered.status == status
}

// unavailable marks the failure of a call that should work at a server that is well.
func unavailable(err error) error {
	if errors.Is(err, context.Canceled) {
		return err // the caller has cancelled
	}
	return fmt.Errorf("%w: %w", kernel.ErrUnavailable, err)
}

// call sends a request to the server's REST API; in and out are JSON and may be nil. Every status
// but 2xx is a [statusError].
func (s *Server) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		encoded, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encoding the request: %w", err)
		}
		body = bytes.NewReader(encoded)
	}
	request, err := http.NewRequestWithContext(ctx, method, s.base.JoinPath(path).String(), body)
	if err != nil {
		return err
	}
	request.Header = s.header()
	request.Header.Set("Content-Type", "application/json")
	answer, err := s.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode/100 != 2 {
		return newStatusError(answer)
	}
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(answer.Body, maxAnswer)).Decode(out); err != nil {
		return fmt.Errorf("%s does not answer like a Jupyter Server: %w", s.base, err)
	}
	return nil
}

func newStatusError(answer *http.Response) *statusError {
	var said struct {
		Message string `json:"message"`
	}
	// What is no JSON is a page for people.
	_ = json.NewDecoder(io.LimitReader(answer.Body, maxAnswer)).Decode(&said)
	message, _, _ := strings.Cut(strings.TrimSpace(said.Message), "\n")
	return &statusError{status: answer.StatusCode, message: message}
}

// header is what every request carries.
func (s *Server) header() http.Header {
	header := make(http.Header)
	if s.token != "" {
		header.Set("Authorization", "token "+s.token)
	} else {
		// A server without a token still requires proof that the request is not another web site's:
		// the same value twice.
		header.Set("Cookie", "_xsrf=00")
		header.Set("X-XSRFToken", "00")
	}
	return header
}

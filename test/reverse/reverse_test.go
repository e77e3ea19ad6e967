package reverse_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"
	"testing"

	"sandbox.internal/test/reverse"
	"sandbox.internal/test/wait"
)

// late is a transport that reads the end of a request's body after the response has begun.
type late struct{}

// RoundTrip implements [http.RoundTripper].
func (late) RoundTrip(r *http.Request) (*http.Response, error) {
	body := make([]byte, r.ContentLength)
	if _, err := io.ReadFull(r.Body, body); err != nil {
		return nil, err
	}
	rest := func(p []byte) (int, error) {
		if n, err := r.Body.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
			return 0, errors.Join(errors.New("the body of the request has been closed"), err)
		}
		return copy(p, " rest"), io.EOF
	}
	return &http.Response{
		StatusCode: http.StatusOK, ContentLength: -1, Request: r,
		Body: io.NopCloser(io.MultiReader(strings.NewReader("first"), reader(rest))),
	}, nil
}

type reader func([]byte) (int, error)

// Read implements [io.Reader].
func (r reader) Read(p []byte) (int, error) { return r(p) }

// TestBodyStaysOpen: the body of a request can be read to its end after the response has begun.
func TestBodyStaysOpen(t *testing.T) {
	server := httptest.NewServer(reverse.Handler(&httputil.ReverseProxy{
		Rewrite: func(*httputil.ProxyRequest) {}, Transport: late{}, FlushInterval: -1,
	}))
	defer server.Close()
	response, err := wait.Client().Post(server.URL, "text/plain", strings.NewReader("request"))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close() //nolint:errcheck // it is read
	if got, err := io.ReadAll(response.Body); string(got) != "first rest" || err != nil {
		t.Errorf("the response is %q, %v; want %q", got, err, "first rest")
	}
}

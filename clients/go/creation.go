package sandbox

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"net/http"
	"strconv"
	"time"

	"sandbox.internal/clients/go/execd"
)

// creation is a request that makes something in a sandbox, and makes it once however often it is
// sent.
type creation struct {
	do    func(context.Context, execd.RequestEditorFn) (*http.Response, error)
	key   string
	since time.Time // when it was first sent, of the times that it may have arrived; zero before
}

// makeOnce returns what makes something once. do sends the request with the headers that it is
// given.
func makeOnce(do func(context.Context, execd.RequestEditorFn) (*http.Response, error)) *creation {
	return &creation{do: do, key: rand.Text()}
}

// request is a request for send or call.
func (m *creation) request(ctx context.Context) (*http.Response, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	begin := time.Now()
	response, err := m.do(ctx, m.headers)
	if m.since.IsZero() && mayHaveArrived(response, err) {
		m.since = begin
	}
	return response, err
}

// takeBack ends what was made for a caller whose ctx ended before the answer with its id came: it
// asks for the answer once more, and calls end with the id that is in a header of it.
func (m *creation) takeBack(ctx context.Context, header string, end func(ctx context.Context, id string) error) {
	if ctx.Err() == nil || m.since.IsZero() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), interruptPatience)
	defer cancel()
	response, err := m.request(ctx)
	if err != nil {
		return // best effort: the sandbox ends it at its expiry
	}
	_ = response.Body.Close()
	if id := response.Header.Get(header); id != "" && response.StatusCode < 300 {
		_ = end(ctx, id)
	}
}

// headers gives the request its key and, once it may have arrived, its age. The daemon does not
// know the keys of the daemon before it, which may have been killed.
func (m *creation) headers(_ context.Context, request *http.Request) error {
	request.Header.Set("Idempotency-Key", m.key)
	if !m.since.IsZero() {
		age := time.Since(m.since).Milliseconds() + 1 // rounded up
		request.Header.Set("Idempotency-Age", strconv.FormatInt(age, 10))
	}
	// With it, net/http itself would repeat a request that has a key, and not give it its age.
	request.GetBody = nil
	return nil
}

// mayHaveArrived reports whether what was asked for may have been done. It was not when there was
// no connection, and when the answer refuses it.
func mayHaveArrived(response *http.Response, err error) bool {
	if err != nil {
		return !notConnected(err)
	}
	return response.StatusCode < 300 || response.StatusCode >= 500
}

// notConnected reports whether a request failed because no connection could be made.
func notConnected(err error) bool {
	var network *net.OpError
	return errors.As(err, &network) && network.Op == "dial"
}

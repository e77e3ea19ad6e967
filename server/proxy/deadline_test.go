package proxy_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/server/proxy"
)

// deadlines records the deadlines of its writes.
type deadlines struct {
	*httptest.ResponseRecorder
	now   time.Time // the deadline that is set
	bound bool      // each write had one
}

func (d *deadlines) SetWriteDeadline(at time.Time) error {
	d.now = at
	return nil
}

func (d *deadlines) Write(p []byte) (int, error) {
	d.bound = d.bound && !d.now.IsZero()
	return d.ResponseRecorder.Write(p)
}

func (d *deadlines) Flush() { d.bound = d.bound && !d.now.IsZero() }

// TestDeadlineIsForWritesAlone: over HTTP/2 net/http ends a stream at its deadline, whether
// something is being written or not, so that an answer which is silent for a while would be cut.
func TestDeadlineIsForWritesAlone(t *testing.T) {
	w := &deadlines{ResponseRecorder: httptest.NewRecorder(), bound: true}
	address := upstream(t, func(out http.ResponseWriter, _ *http.Request) {
		_, _ = out.Write([]byte("data: 1\n\n"))
		_ = http.NewResponseController(out).Flush()
	})
	r := httptest.NewRequest(http.MethodGet, prefix+"/", nil)
	r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/2.0", 2, 0
	if err := proxy.New(zerolog.Nop()).Forward(w, r, to(address)); err != nil {
		t.Fatal(err)
	}
	if w.Body.String() != "data: 1\n\n" || !w.bound || !w.now.IsZero() {
		t.Errorf("body %q, all writes bounded: %t, deadline after them %v", w.Body, w.bound, w.now)
	}
}

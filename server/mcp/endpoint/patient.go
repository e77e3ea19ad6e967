package endpoint

import (
	"net/http"
	"time"
)

// patience is how long a client may take nothing of an answer before it is given up, as in package
// proxy.
const patience = 2 * time.Minute

// patient is where an answer goes to the client: no write or flush may take longer than patience, as
// the server has no write timeout.
type patient struct {
	http.ResponseWriter
	controller *http.ResponseController
	streams    bool // HTTP/2, where a deadline ends a stream that nothing is written to, too
}

func newPatient(w http.ResponseWriter, r *http.Request) *patient {
	return &patient{w, http.NewResponseController(w), r.ProtoMajor == 2}
}

// Unwrap lets a http.ResponseController through.
func (p *patient) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// Write implements http.ResponseWriter.
func (p *patient) Write(data []byte) (int, error) {
	defer p.bound()()
	return p.ResponseWriter.Write(data)
}

// FlushError sends what has been written.
func (p *patient) FlushError() error {
	defer p.bound()()
	return p.controller.Flush()
}

// bound sets the deadline of a write, and returns what lifts it. Over HTTP/1 net/http does so after
// the response, whose last bytes it sends when the handler has returned.
func (p *patient) bound() (lift func()) {
	// A writer without deadlines, a test's, works without.
	_ = p.controller.SetWriteDeadline(time.Now().Add(patience))
	return func() {
		if p.streams {
			_ = p.controller.SetWriteDeadline(time.Time{})
		}
	}
}

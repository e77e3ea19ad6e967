package e2b

import (
	"bytes"
	"fmt"
	"net/http"
	"regexp"
)

// unreachableWriter passes responses of execd, and replaces the error of the service that a sandbox
// does not run by E2B's: the sandbox may have ended since it was looked up.
type unreachableWriter struct {
	http.ResponseWriter
	id     string
	status int // of a response that is held back; 0 for none
	held   bytes.Buffer
	begun  bool
}

// serviceCode matches the beginning of an error of the service, whose codes are in capitals. Those
// of execd/e2b are not.
var serviceCode = regexp.MustCompile(`^\s*\{\s*"code"\s*:\s*"[A-Z_]+"`)

// maxHeld bounds an error that is held back, in bytes. Errors of the service are smaller.
const maxHeld = 64 << 10

// Unwrap gives a [http.ResponseController] access to the wrapped writer.
func (w *unreachableWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *unreachableWriter) WriteHeader(status int) {
	if w.begun || w.status != 0 {
		return
	}
	if status == http.StatusConflict || status == http.StatusNotFound || status == http.StatusBadGateway {
		w.status = status
		return
	}
	w.begun = status >= http.StatusOK
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *unreachableWriter) Write(p []byte) (int, error) {
	if !w.begun && w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if w.begun {
		return w.ResponseWriter.Write(p)
	}
	if w.held.Len()+len(p) > maxHeld {
		w.release()
		return w.ResponseWriter.Write(p)
	}
	return w.held.Write(p)
}

// FlushError keeps a [http.ResponseController] from sending the headers of a response that is held
// back.
func (w *unreachableWriter) FlushError() error {
	if !w.begun && w.status != 0 {
		return nil
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// release sends the response that is held back unchanged.
func (w *unreachableWriter) release() {
	w.begun = true
	w.ResponseWriter.WriteHeader(w.status)
	_, _ = w.ResponseWriter.Write(w.held.Bytes()) // a client that has disconnected needs no response
}

// finish ends the response.
func (w *unreachableWriter) finish() {
	switch {
	case w.begun || w.status == 0:
	case serviceCode.Match(w.held.Bytes()):
		for _, name := range []string{"Content-Length", "Retry-After"} {
			w.Header().Del(name)
		}
		sendUnreachable(w.ResponseWriter, w.id, "the sandbox is not running")
	default:
		w.release()
	}
}

// sendUnreachable responds that a sandbox or a port of it cannot be reached.
func sendUnreachable(w http.ResponseWriter, id, message string) {
	sendJSON(w, http.StatusBadGateway, map[string]any{
		"sandboxId": fmt.Sprintf("%.64s", id), "message": message, "code": http.StatusBadGateway,
	})
}

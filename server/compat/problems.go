package compat

import (
	"bytes"
	"encoding/json"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"sandbox.internal/server/reach"
)

// maxProblem is how many bytes the body of an error may have to be translated. The service's have
// fewer.
const maxProblem = 64 << 10

// problem is the body of an error, and its status.
type problem struct {
	Status  int    `json:"-"`
	Code    string `json:"code"`
	Message string `json:"message"`
	// Detail is in errors of the service, and never in those of OpenSandbox.
	Detail string `json:"detail,omitempty"`
}

// parseProblem returns the problem in the body of an answer.
func parseProblem(status int, contentType string, body []byte) (p problem, ok bool) {
	if media, _, err := mime.ParseMediaType(contentType); status < http.StatusBadRequest || err != nil || media != "application/json" {
		return problem{}, false
	}
	if json.Unmarshal(body, &p) != nil || p.Code == "" {
		return problem{}, false
	}
	p.Status = status
	return p, true
}

// toTheirs returns the problem as OpenSandbox writes it: with its codes, and with the header of its
// keys.
func (x *exchange) toTheirs(p problem) problem {
	p.Detail = ""
	p.Message = strings.ReplaceAll(p.Message, reach.KeyHeader, keyHeader)
	action := x.r.URL.Path[strings.LastIndexByte(x.r.URL.Path, '/')+1:]
	switch {
	case p.Status == http.StatusUnauthorized:
		p.Code = "INVALID_API_KEY"
		if len(reach.PresentedKeys(x.r.Header)) == 0 {
			p.Code = "MISSING_API_KEY"
		}
	case p.Code == "SNAPSHOT_NOT_FOUND":
		p.Code = "SNAPSHOT::NOT_FOUND"
	case p.Status == http.StatusConflict && ofSnapshots(x.r.URL.Path):
		p.Code = "SNAPSHOT::INVALID_STATE"
	case p.Status == http.StatusNotImplemented && ofSnapshots(x.r.URL.Path):
		p.Code = "SNAPSHOT::NOT_IMPLEMENTED"
	case p.Code == "SANDBOX_NOT_FOUND":
		p.Code = x.edge.code("SANDBOX_NOT_FOUND")
	case p.Status == http.StatusConflict && action == "pause":
		p.Code = x.edge.stateCode("SANDBOX_NOT_RUNNING")
	case p.Status == http.StatusConflict && action == "resume":
		p.Code = x.edge.stateCode("SANDBOX_NOT_PAUSED")
	case p.Status == http.StatusBadRequest && action == "renew-expiration":
		p.Code = "DOCKER::INVALID_EXPIRATION" // on clusters too
	case p.Code == "INVALID_REQUEST_BODY":
		p.Code = codeInvalidParameter
	case p.Code == "INTERNAL_ERROR":
		p.Code = "SANDBOX::INTERNAL_ERROR"
	}
	return p
}

const codeInvalidParameter = "SANDBOX::INVALID_PARAMETER"

// code returns one of the codes that OpenSandbox has for Docker and for Kubernetes alike.
func (e *Edge) code(name string) string {
	if e.Cluster {
		return "KUBERNETES::" + name
	}
	return "DOCKER::" + name
}

// stateCode returns the code of OpenSandbox for a state that does not allow a request.
func (e *Edge) stateCode(onDocker string) string {
	if e.Cluster {
		return "KUBERNETES::INVALID_STATE"
	}
	return "DOCKER::" + onDocker
}

// bothKeyHeaders returns the refusal of a request without a key with the headers of both kinds of
// clients.
func bothKeyHeaders(p problem) problem {
	if p.Status == http.StatusUnauthorized {
		p.Message = strings.Replace(p.Message, reach.KeyHeader+":", reach.KeyHeader+" or "+keyHeader+":", 1)
		p.Detail = p.Message
	}
	return p
}

// nameKeyHeader makes a challenge name the header of OpenSandbox's keys.
func nameKeyHeader(header http.Header) {
	const challenge = "WWW-Authenticate"
	if value := header.Get(challenge); value != "" {
		header.Set(challenge, strings.ReplaceAll(value, reach.KeyHeader, keyHeader))
	}
}

// problemWriter passes an answer on and translates it when it is an error of the service.
type problemWriter struct {
	http.ResponseWriter
	translate func(problem) problem
	status    int // of the error that is held back; 0 for none
	held      bytes.Buffer
	begun     bool
}

// Unwrap gives a [http.ResponseController] access to the wrapped writer.
func (w *problemWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *problemWriter) WriteHeader(status int) {
	if w.begun || w.status != 0 {
		return
	}
	if media, _, err := mime.ParseMediaType(w.Header().Get("Content-Type")); status >= http.StatusBadRequest && err == nil && media == "application/json" {
		w.status = status
		return
	}
	w.begun = status >= http.StatusOK // an interim response precedes the answer
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *problemWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if w.status == 0 {
		return w.ResponseWriter.Write(p)
	}
	if w.held.Len()+len(p) > maxProblem {
		w.release(w.held.Bytes())
		return w.ResponseWriter.Write(p)
	}
	return w.held.Write(p)
}

// FlushError keeps a [http.ResponseController] from flushing an error that is held back.
func (w *problemWriter) FlushError() error {
	if w.status != 0 {
		return nil
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// finish sends what is held back. It is called when the answer is complete.
func (w *problemWriter) finish() {
	if w.status == 0 {
		return
	}
	body := w.held.Bytes()
	if p, ok := parseProblem(w.status, w.Header().Get("Content-Type"), body); ok {
		body = encode(w.translate(p))
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.release(body)
}

// release sends the status and the bytes that were held back.
func (w *problemWriter) release(body []byte) {
	w.begun = true
	w.ResponseWriter.WriteHeader(w.status)
	w.status = 0
	_, _ = w.ResponseWriter.Write(body) // the client may have disconnected
}

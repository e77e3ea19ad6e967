package compat

import (
	"bytes"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"sandbox.internal/server/internal/subrequest"
)

const (
	// maxBody is how many bytes of a JSON body are translated. The service refuses more.
	maxBody         = 1 << 20
	requestIDHeader = subrequest.RequestIDHeader
)

// exchange is one request of a client and what the service is asked for it.
type exchange struct {
	edge *Edge
	w    http.ResponseWriter
	r    *http.Request // with the key where the service looks for it
	key  string        // as the client sent it
	id   string        // of the request, once the service has answered
}

// pass lets the service answer the request as it is. Only its errors are translated, and nothing of
// what a program in a sandbox answers.
func (x *exchange) pass() {
	if rest, ok := strings.CutPrefix(x.r.URL.Path, versioned+"/"); !ok || strings.HasPrefix(rest, "sandboxes/") && !isOperation(x.r.URL.Path) {
		x.edge.Next.ServeHTTP(x.w, x.r)
		return
	}
	out := &problemWriter{ResponseWriter: x.w, translate: func(p problem) problem {
		nameKeyHeader(x.w.Header())
		return x.toTheirs(p)
	}}
	x.edge.Next.ServeHTTP(out, x.r)
	out.finish()
}

// take reads a JSON body. It reports false when there is none that can be translated; the request
// still has it then, and the service says what is wrong.
func (x *exchange) take() (body []byte, ok bool) {
	if media, _, err := mime.ParseMediaType(x.r.Header.Get("Content-Type")); err == nil && media != "application/json" &&
		media != "application/merge-patch+json" {
		return nil, false
	}
	body, err := io.ReadAll(io.LimitReader(x.r.Body, maxBody+1))
	if err != nil || len(body) > maxBody {
		x.r.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(body), x.r.Body), x.r.Body}
		return nil, false
	}
	return body, true
}

// takeObject reads a JSON object. When it reports false, the service has answered.
func (x *exchange) takeObject() (object, bool) {
	body, ok := x.take()
	if !ok {
		x.pass()
		return nil, false
	}
	var fields object
	if err := json.Unmarshal(body, &fields); err != nil || fields == nil {
		x.ask(x.r.Method, x.r.URL.Path, x.r.URL.Query(), body).send(x.w)
		return nil, false
	}
	return fields, true
}

// ask sends the service a request in the client's name, with a JSON body unless that is nil, and
// keeps the answer.
func (x *exchange) ask(method, path string, query url.Values, body []byte) *answer {
	r := *x.r
	if x.id != "" {
		r.Header = x.r.Header.Clone()
		r.Header.Set(requestIDHeader, x.id)
	}
	kept := subrequest.Do(x.edge.Next, x.w, &r, subrequest.Request{Method: method, Path: path, Query: query, Body: body})
	x.id = kept.Header().Get(requestIDHeader)
	return &answer{exchange: x, Response: kept}
}

// askAndWait is ask for a change of a sandbox's state, which the service waits for, some seconds at
// most.
func (x *exchange) askAndWait(seconds int, method, path string, body []byte) *answer {
	const prefer = "Prefer"
	x.r.Header.Set(prefer, "wait="+strconv.Itoa(seconds))
	defer x.r.Header.Del(prefer)
	return x.ask(method, path, x.r.URL.Query(), body)
}

// answer is a response of the service.
type answer struct {
	*subrequest.Response
	exchange *exchange // that it is part of
}

// send answers the client. It cuts the connection when the answer was too large, since a part would
// be taken for the whole.
func (a *answer) send(w http.ResponseWriter) {
	if a.TooLarge {
		panic(http.ErrAbortHandler)
	}
	if p, ok := parseProblem(a.Status, a.Header().Get("Content-Type"), a.Body.Bytes()); ok {
		nameKeyHeader(a.Header())
		a.Body.Reset()
		a.Body.Write(encode(a.exchange.toTheirs(p)))
	}
	header := w.Header()
	for name, values := range a.Header() {
		header[name] = values
	}
	header.Del("Preference-Applied")
	if a.Body.Len() > 0 {
		header.Set("Content-Length", strconv.Itoa(a.Body.Len()))
	}
	w.WriteHeader(a.Status)
	_, _ = w.Write(a.Body.Bytes()) // a client that is gone by now is no news
}

// sendJSON answers the client with another body.
func (a *answer) sendJSON(w http.ResponseWriter, value any) {
	a.Body.Reset()
	a.Body.Write(encode(value))
	a.TooLarge = false
	a.Header().Set("Content-Type", "application/json")
	a.send(w)
}

// fail answers the client with an error in place of the answer.
func (a *answer) fail(w http.ResponseWriter, status int, code, message string) {
	a.Status = status
	a.sendJSON(w, problem{Code: code, Message: message})
}

// refuse answers the client that its request is wrong, in place of the answer.
func (a *answer) refuse(w http.ResponseWriter, message string) {
	a.fail(w, http.StatusBadRequest, codeInvalidParameter, message)
}

// refuse answers the client that its request is wrong. The service is not asked but for the
// request's id.
func (x *exchange) refuse(code, message string) {
	x.ask(http.MethodGet, "/v1/version", nil, nil).fail(x.w, http.StatusBadRequest, code, message)
}

// object is a JSON object whose values stay as they were written.
type object = map[string]json.RawMessage

// encode returns the JSON of what came from JSON, or of strings.
func encode(value any) []byte {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		panic(err)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}

// within changes an object that is the value of a field. A value that is none stays as it is, for
// the service to refuse.
func within(fields object, name string, change func(object)) {
	var inner object
	if raw, ok := fields[name]; !ok || json.Unmarshal(raw, &inner) != nil || inner == nil {
		return
	}
	change(inner)
	fields[name] = encode(inner)
}

// dropNulls removes the fields that are null, which means that they are absent.
func dropNulls(fields object) {
	for name, raw := range fields {
		if is(raw, "null") {
			delete(fields, name)
		}
	}
}

func is(raw json.RawMessage, literal string) bool { return string(bytes.TrimSpace(raw)) == literal }

func quoted(text string) json.RawMessage { return encode(text) }

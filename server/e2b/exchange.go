package e2b

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"sandbox.internal/server/internal/subrequest"
	"sandbox.internal/server/lifecycle"
)

const (
	// maxBody bounds the body of a request, in bytes. The service takes no larger one.
	maxBody       = 1 << 20
	sandboxesPath = "/v1/sandboxes"
)

// exchange is one request of a client and what the service is asked for it.
type exchange struct {
	edge    *Edge
	w       http.ResponseWriter
	r       *http.Request
	id      string // of the request, once the service has answered
	creates bool
}

// serveAPI answers a request to E2B's API.
func (e *Edge) serveAPI(w http.ResponseWriter, r *http.Request) {
	x := &exchange{edge: e, w: w, r: r}
	if !e.Admits(r) {
		// The service answers, and counts, a wrong key.
		if found := x.ask(http.MethodGet, "/v1/version", nil, nil); !found.OK() {
			x.refuse(found)
			return
		}
	}
	x.route()
}

// route answers by method and path.
func (x *exchange) route() {
	parts := strings.Split(strings.Trim(withoutVersion(x.r.URL.Path), "/"), "/")
	at := x.r.Method + " " + parts[0]
	switch {
	case len(parts) == 1:
		switch at {
		case "POST sandboxes":
			x.creates = true
			x.create()
			return
		case "GET sandboxes":
			x.list()
			return
		case "GET snapshots":
			sendJSON(x.w, http.StatusOK, []string{})
			return
		case "GET templates":
			x.templates()
			return
		}
	case parts[0] == "sandboxes":
		x.sandbox(parts)
		return
	case at == "DELETE templates" && len(parts) == 2:
		sendProblem(x.w, http.StatusNotFound, fmt.Sprintf("snapshot %.128s: not found: there are no snapshots", parts[1]))
		return
	case at == "GET templates" && len(parts) == 3 && parts[1] == "aliases":
		x.alias(parts[2])
		return
	}
	x.unsupported()
}

// unsupported answers for an operation of E2B that this service does not have.
func (x *exchange) unsupported() {
	sendProblem(x.w, http.StatusNotImplemented, fmt.Sprintf("%s %.128s: is not supported by this service (docs/e2b.md has what is)",
		x.r.Method, x.r.URL.Path))
}

// sandbox answers for one sandbox.
func (x *exchange) sandbox(parts []string) {
	id, ok := internalID(parts[1])
	if !ok {
		x.notFound(parts[1])
		return
	}
	operation := ""
	if len(parts) == 3 {
		operation = " " + parts[2]
	} else if len(parts) > 3 {
		x.unsupported()
		return
	}
	handle := map[string]func(id string){
		"GET": x.get, "DELETE": x.kill, "POST connect": x.connect, "POST resume": x.connect, "POST timeout": x.setTimeout,
		"POST refreshes": x.refresh, "POST pause": x.pause, "PUT network": x.setNetwork, "GET metrics": x.metrics, "GET logs": x.logs,
	}[x.r.Method+operation]
	if handle == nil {
		x.unsupported()
		return
	}
	handle(id)
}

func (x *exchange) notFound(id string) {
	sendProblem(x.w, http.StatusNotFound, fmt.Sprintf("sandbox %.128s: not found", id))
}

// ask asks the service in the client's name, with a JSON body unless that is nil.
func (x *exchange) ask(method, path string, query url.Values, body any) *subrequest.Response {
	r := *x.r
	r.Header = x.r.Header.Clone()
	if x.id != "" {
		r.Header.Set(subrequest.RequestIDHeader, x.id)
	}
	r.Header.Del("Content-Type")
	request := subrequest.Request{Method: method, Path: path, Query: query}
	if body != nil {
		var err error
		if request.Body, err = json.Marshal(body); err != nil {
			panic(err) // strings, numbers and what came from JSON can be encoded
		}
	}
	found := subrequest.Do(x.edge.Next, x.w, &r, request)
	x.id = found.Header().Get(subrequest.RequestIDHeader)
	x.w.Header().Set(subrequest.RequestIDHeader, x.id)
	return found
}

// askAndWait is ask for a change of a sandbox's state, which the service waits for.
func (x *exchange) askAndWait(seconds int, method, path string, body any) *subrequest.Response {
	x.r.Header.Set("Prefer", "wait="+strconv.Itoa(seconds))
	defer x.r.Header.Del("Prefer")
	return x.ask(method, path, nil, body)
}

// find returns a sandbox that the client may see and that E2B would have. When it reports false,
// the client has been answered.
func (x *exchange) find(id string) (lifecycle.Sandbox, bool) {
	// The service decides whether the client may see it.
	found := x.ask(http.MethodGet, sandboxesPath+"/"+id, nil, nil)
	if !found.OK() {
		if found.Status == http.StatusNotFound {
			x.notFound(id)
		} else {
			x.refuse(found)
		}
		return lifecycle.Sandbox{}, false
	}
	sandbox, err := x.edge.Backend.Read(x.r.Context(), id)
	if err != nil || !isAlive(sandbox.Status.State) {
		x.notFound(id)
		return lifecycle.Sandbox{}, false
	}
	return sandbox, true
}

// isPaused reports whether the sandbox is paused.
func (x *exchange) isPaused(id string) bool {
	sandbox, err := x.edge.Backend.Get(x.r.Context(), id)
	return err == nil && sandbox.Status.State == lifecycle.StatePaused
}

// token returns the token of the sandbox's execd, empty for a client that may see the sandbox and
// not use it. The service decides that, and has what it gives out in its audit log. When it reports
// false, the client has been answered.
func (x *exchange) token(id string) (string, bool) {
	path := sandboxesPath + "/" + id + "/endpoints/" + strconv.Itoa(lifecycle.DaemonPort)
	found := x.ask(http.MethodGet, path, nil, nil)
	var endpoint struct {
		Headers map[string]string `json:"headers"`
	}
	switch {
	case found.Status == http.StatusForbidden:
		return "", true
	case found.Status == http.StatusConflict && x.isPaused(id): // its processes are gone
		return "", true
	case found.Status == http.StatusNotFound, found.Status == http.StatusConflict: // it ended meanwhile
		x.notFound(id)
		return "", false
	case !found.OK() || json.Unmarshal(found.Body.Bytes(), &endpoint) != nil:
		x.refuse(found)
		return "", false
	}
	return endpoint.Headers[lifecycle.TokenHeader], true
}

// readBody reads the JSON object of a request into fields. Without a body, fields stay as they are.
// A field that is not known is refused by its name. When it reports false, the client has been
// answered.
func (x *exchange) readBody(fields any) bool {
	body, err := io.ReadAll(io.LimitReader(x.r.Body, maxBody+1))
	switch {
	case err != nil:
		sendProblem(x.w, http.StatusBadRequest, "body: did not arrive completely")
		return false
	case len(body) > maxBody:
		sendProblem(x.w, http.StatusRequestEntityTooLarge, fmt.Sprintf("body: must have at most %d bytes", maxBody))
		return false
	case len(bytes.TrimSpace(body)) == 0:
		return true
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(fields); err != nil {
		sendProblem(x.w, http.StatusBadRequest, "body: "+explain(err))
		return false
	}
	return true
}

// explain says in our words what is wrong with a JSON body.
func explain(err error) string {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return fmt.Sprintf("%s: must be a %s, not a %s", wrong.Field, kind(wrong.Type.String()), wrong.Value)
	}
	text := strings.TrimPrefix(err.Error(), "json: ")
	if name, ok := strings.CutPrefix(text, "unknown field "); ok {
		return fmt.Sprintf("%s: this field is not supported by this service (docs/e2b.md has those that are)", strings.Trim(name, `"`))
	}
	return text
}

// kind names a type of Go as JSON has it.
func kind(name string) string {
	switch {
	case strings.HasSuffix(name, "string"):
		return "string"
	case strings.HasSuffix(name, "bool"):
		return "boolean"
	case strings.Contains(name, "int") || strings.Contains(name, "float"):
		return "whole number"
	case strings.HasPrefix(name, "[]"):
		return "list"
	}
	return "object"
}

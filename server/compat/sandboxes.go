package compat

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"sandbox.internal/server/internal/subrequest"
	"sandbox.internal/server/lifecycle"
)

const (
	// reservedPrefix is their prefix for metadata of the system. Here such metadata is what a
	// sandbox's client asked for and the service has no field for; clients of OpenSandbox do not
	// see it.
	reservedPrefix = "opensandbox.io/"
	// expiryKey is the metadata of a sandbox whose client asked for another expiry than the
	// service's own: never, or an earlier time.
	expiryKey = reservedPrefix + "expires-at"
	never     = "never"
	// platformKey has the platform that the client asked for, as OS/ARCHITECTURE.
	platformKey = reservedPrefix + "platform"
	// noSandbox is metadata that no sandbox has.
	noSandbox = "opensandbox.io/no-sandbox"
	// maxPageSize bounds the list that is held in memory while it is translated.
	maxPageSize = 200
)

func (x *exchange) get() { x.sendSandbox(x.ask(http.MethodGet, x.r.URL.Path, x.r.URL.Query(), nil)) }

// stateOf is the state of a sandbox in JSON.
type stateOf struct {
	Status struct {
		State   lifecycle.State  `json:"state"`
		Reason  lifecycle.Reason `json:"reason"`
		Message string           `json:"message"`
	} `json:"status"`
}

// gone reports whether OpenSandbox would not have the sandbox any more: there, one that has ended
// is removed.
func (s stateOf) gone() bool {
	return s.Status.State == lifecycle.StateStopping || s.Status.State.Final()
}

// sendSandbox answers with the sandbox of an answer, or with the error that it is.
func (x *exchange) sendSandbox(a *answer) {
	var sandbox object
	var state stateOf
	if !a.OK() || json.Unmarshal(a.Body.Bytes(), &sandbox) != nil || json.Unmarshal(a.Body.Bytes(), &state) != nil {
		a.send(x.w)
		return
	}
	if state.gone() {
		x.sendGone(a)
		return
	}
	a.sendJSON(x.w, fromSandbox(sandbox))
}

// sendGone answers that there is no such sandbox, in place of the answer.
func (x *exchange) sendGone(a *answer) {
	id, _, _ := strings.Cut(strings.TrimPrefix(x.r.URL.Path, sandboxesPath+"/"), "/")
	a.Header().Del("Retry-After")
	a.fail(x.w, http.StatusNotFound, x.edge.code("SANDBOX_NOT_FOUND"), lifecycle.NotFound(id).Message)
}

// sendUnlessGone answers with the answer to a request for a sandbox. A conflict is what the service
// answers for one that has ended, too.
func (x *exchange) sendUnlessGone(a *answer) {
	if a.Status == http.StatusConflict && x.isGone() {
		x.sendGone(a)
		return
	}
	a.send(x.w)
}

// isGone asks the service whether the sandbox of the request has ended.
func (x *exchange) isGone() bool {
	id, _, _ := strings.Cut(strings.TrimPrefix(x.r.URL.Path, sandboxesPath+"/"), "/")
	found := x.ask(http.MethodGet, sandboxesPath+"/"+id, nil, nil)
	var state stateOf
	return found.OK() && json.Unmarshal(found.Body.Bytes(), &state) == nil && state.gone()
}

// act pauses or resumes.
func (x *exchange) act() {
	body, ok := x.take()
	if !ok {
		x.pass()
		return
	}
	x.sendUnlessGone(x.ask(x.r.Method, x.r.URL.Path, x.r.URL.Query(), body))
}

// removeWait is how many seconds a removal may take until it is answered. The sandbox is gone for
// the client then, removed or not.
const removeWait = 10

// remove deletes the sandbox. One that is about to end is gone already.
func (x *exchange) remove() {
	found := x.ask(http.MethodGet, x.r.URL.Path, nil, nil)
	var state stateOf
	switch {
	case !found.OK() || json.Unmarshal(found.Body.Bytes(), &state) != nil:
		found.send(x.w)
	case state.gone():
		x.sendGone(found)
	default:
		x.sendUnlessGone(x.askAndWait(removeWait, http.MethodDelete, x.r.URL.Path, nil))
	}
}

// theirFields are the fields of a sandbox that OpenSandbox has.
var theirFields = []string{
	"id", "image", "snapshotId", "platform", "status", "metadata", "extensions", "allocation", "entrypoint", "expiresAt", "createdAt",
}

// fromSandbox returns a sandbox with their fields, and the expiry that its client asked for. What
// is empty is absent there.
func fromSandbox(sandbox object) object {
	within(sandbox, "metadata", func(metadata object) {
		var requested, platform string
		_ = json.Unmarshal(metadata[expiryKey], &requested)
		_ = json.Unmarshal(metadata[platformKey], &platform)
		maps.DeleteFunc(metadata, func(key string, _ json.RawMessage) bool { return strings.HasPrefix(key, reservedPrefix) })
		var own time.Time
		_ = json.Unmarshal(sandbox["expiresAt"], &own)
		if requested == never {
			delete(sandbox, "expiresAt")
		} else if at, ok := earlier(requested, own); ok {
			sandbox["expiresAt"] = quoted(at.Format(time.RFC3339Nano))
		}
		if system, architecture, ok := strings.Cut(platform, "/"); ok {
			sandbox["platform"] = encode(map[string]string{"os": system, "arch": architecture})
		}
	})
	maps.DeleteFunc(sandbox, func(name string, value json.RawMessage) bool {
		return !slices.Contains(theirFields, name) || is(value, "{}") || is(value, "null")
	})
	return sandbox
}

// earlier returns the requested time when there is one before the service's own.
func earlier(requested string, own time.Time) (at time.Time, ok bool) {
	at, err := time.Parse(time.RFC3339Nano, requested)
	return at, err == nil && at.Before(own)
}

func (x *exchange) list() {
	query, err := url.ParseQuery(x.r.URL.RawQuery)
	if err != nil {
		x.pass()
		return
	}
	states := query["state"]
	query.Del("state")
	for _, state := range livingStates() {
		if len(states) == 0 || slices.ContainsFunc(states, func(name string) bool { return strings.EqualFold(name, string(state)) }) {
			query.Add("state", string(state))
		}
	}
	if len(query["state"]) == 0 { // no sandbox that these clients can see is in one of the states
		filter := url.QueryEscape(noSandbox) + "=1"
		if own := query.Get("metadata"); own != "" {
			filter = own + "&" + filter
		}
		query.Set("metadata", filter)
	}
	if size, err := strconv.Atoi(query.Get("pageSize")); err == nil && size > maxPageSize {
		query.Set("pageSize", strconv.Itoa(maxPageSize))
	}
	found := x.ask(http.MethodGet, sandboxesPath, query, nil)
	if found.OK() && found.TooLarge {
		found.refuse(x.w, fmt.Sprintf("query/pageSize: one page of these sandboxes has more than %d MiB: ask for fewer at a time", subrequest.MaxResponse>>20))
		return
	}
	var page object
	var items []object
	if !found.OK() || json.Unmarshal(found.Body.Bytes(), &page) != nil || json.Unmarshal(page["items"], &items) != nil {
		found.send(x.w)
		return
	}
	for i, sandbox := range items {
		items[i] = fromSandbox(sandbox)
	}
	page["items"] = encode(items)
	found.sendJSON(x.w, page)
}

// livingStates lists the states of sandboxes that have not ended and are not about to.
func livingStates() []lifecycle.State {
	return slices.DeleteFunc(lifecycle.States(), func(state lifecycle.State) bool {
		return state.Final() || state == lifecycle.StateStopping
	})
}

func (x *exchange) patchMetadata() {
	patch, ok := x.takeObject()
	if !ok {
		return
	}
	delete(patch, expiryKey)
	delete(patch, lifecycle.SecureAccessKey)
	if patched := x.ask(http.MethodPatch, x.r.URL.Path, x.r.URL.Query(), encode(patch)); !patched.OK() {
		x.sendUnlessGone(patched)
		return
	}
	x.sendSandbox(x.ask(http.MethodGet, sandboxOf(x.r.URL.Path), nil, nil))
}

// sandboxOf returns the path of the sandbox that a path of two parts below it belongs to.
func sandboxOf(path string) string {
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == '/' {
			return path[:i]
		}
	}
	return path
}

// renew also moves the expiry backwards, which the service does not: the earlier time is a promise
// that [Edge.Keep] keeps.
func (x *exchange) renew() {
	fields, ok := x.takeObject()
	if !ok {
		return
	}
	var wanted time.Time
	asked := func() *answer { return x.ask(http.MethodPost, x.r.URL.Path, x.r.URL.Query(), encode(fields)) }
	if json.Unmarshal(fields["expiresAt"], &wanted) != nil || !wanted.After(x.edge.Clock()) {
		asked().send(x.w)
		return
	}
	found := x.ask(http.MethodGet, sandboxOf(x.r.URL.Path), nil, nil)
	var sandbox struct {
		stateOf
		ExpiresAt time.Time         `json:"expiresAt"`
		Metadata  map[string]string `json:"metadata"`
	}
	if !found.OK() || json.Unmarshal(found.Body.Bytes(), &sandbox) != nil {
		found.send(x.w)
		return
	}
	if sandbox.gone() {
		x.sendGone(found)
		return
	}
	promise := map[string]*string{expiryKey: nil}
	if wanted.After(sandbox.ExpiresAt) {
		renewed := asked()
		if _, requested := sandbox.Metadata[expiryKey]; renewed.OK() && requested {
			if kept := x.ask(http.MethodPatch, sandboxOf(x.r.URL.Path)+"/metadata", nil, encode(promise)); !kept.OK() {
				renewed = kept
			}
		}
		renewed.send(x.w)
		return
	}
	at := wanted.UTC().Format(time.RFC3339Nano)
	promise[expiryKey] = &at
	kept := x.ask(http.MethodPatch, sandboxOf(x.r.URL.Path)+"/metadata", nil, encode(promise))
	if !kept.OK() {
		kept.send(x.w)
		return
	}
	x.edge.expiryChanged()
	kept.sendJSON(x.w, map[string]string{"expiresAt": at})
}

// reportMetrics accepts what their SDKs report about themselves, and drops it.
func (x *exchange) reportMetrics() {
	allowed := x.ask(http.MethodGet, "/v1/version", nil, nil)
	if !allowed.OK() {
		allowed.send(x.w)
		return
	}
	x.w.Header().Set(requestIDHeader, x.id)
	x.w.WriteHeader(http.StatusNoContent)
}

package compat

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"sandbox.internal/server/lifecycle"
)

const (
	// expiryKey is the metadata of a sandbox whose client asked for another expiry than the service's own: never, or an earlier
	// time. It has their prefix for keys of the system. Clients of OpenSandbox do not see it.
	expiryKey = "opensandbox.io/expires-at"
	never     = "never"
	// noSandbox is metadata that no sandbox has.
	noSandbox = "opensandbox.io/no-sandbox"
	// maxPageSize bounds the list that is held in memory while it is translated.
	maxPageSize = 200
)

func (x *exchange) create() {
	fields, ok := x.takeObject()
	if !ok {
		return
	}
	toSpec(fields)
	created := x.ask(http.MethodPost, sandboxesPath, x.r.URL.Query(), encode(fields))
	x.sendSandbox(created)
	if created.ok() {
		x.edge.expiryChanged()
	}
}

// toSpec makes the body of a create one of this service. A field that asks for what the service cannot do stays, so that it is refused by
// its name.
func toSpec(fields object) {
	dropNulls(fields)
	for _, name := range []string{"env", "metadata", "resourceLimits"} {
		within(fields, name, dropNulls)
	}
	within(fields, "image", func(image object) {
		dropNulls(image)
		within(image, "auth", dropNulls)
	})
	within(fields, "networkPolicy", toPolicy)
	within(fields, "credentialProxy", dropNulls)
	if is(fields["secureAccess"], "false") {
		delete(fields, "secureAccess")
	}
	if is(fields["credentialProxy"], `{"enabled":false}`) || is(fields["credentialProxy"], `{}`) {
		delete(fields, "credentialProxy")
	}
	var volumes []object
	if json.Unmarshal(fields["volumes"], &volumes) == nil && fields["volumes"] != nil {
		for _, volume := range volumes {
			dropNulls(volume)
			within(volume, "host", dropNulls)
			within(volume, "pvc", toClaim)
		}
		fields["volumes"] = encode(volumes)
	}
	if fields["timeout"] == nil {
		fields["timeout"] = json.RawMessage(strconv.Itoa(int(lifecycle.MaxTimeout / time.Second)))
		if fields["metadata"] == nil {
			fields["metadata"] = json.RawMessage("{}")
		}
		within(fields, "metadata", func(metadata object) { metadata[expiryKey] = quoted(never) })
	}
}

// toPolicy writes the default out that OpenSandbox has and the service has not.
func toPolicy(policy object) {
	dropNulls(policy)
	if len(policy) > 0 && policy["defaultAction"] == nil {
		policy["defaultAction"] = quoted("deny")
	}
}

// toClaim takes away what the service does anyway, and the hints for what it does not do.
func toClaim(claim object) {
	dropNulls(claim)
	if is(claim["createIfNotExists"], "true") {
		delete(claim, "createIfNotExists")
	}
	if is(claim["deleteOnSandboxTermination"], "false") {
		delete(claim, "deleteOnSandboxTermination")
	}
	for _, hint := range []string{"storageClass", "storage", "accessModes"} {
		delete(claim, hint)
	}
}

func (x *exchange) get() { x.sendSandbox(x.ask(http.MethodGet, x.r.URL.Path, x.r.URL.Query(), nil)) }

// sendSandbox answers with the sandbox of an answer, or with the error that it is.
func (x *exchange) sendSandbox(a *answer) {
	var sandbox object
	if !a.ok() || json.Unmarshal(a.body.Bytes(), &sandbox) != nil {
		a.send(x.w)
		return
	}
	fromSandbox(sandbox)
	a.sendJSON(x.w, sandbox)
}

// fromSandbox shows a sandbox with the expiry that its client asked for.
func fromSandbox(sandbox object) {
	within(sandbox, "metadata", func(metadata object) {
		var requested string
		_ = json.Unmarshal(metadata[expiryKey], &requested)
		delete(metadata, expiryKey)
		var own time.Time
		_ = json.Unmarshal(sandbox["expiresAt"], &own)
		if requested == never {
			delete(sandbox, "expiresAt")
		} else if at, ok := earlier(requested, own); ok {
			sandbox["expiresAt"] = quoted(at.Format(time.RFC3339Nano))
		}
	})
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
	if states := query["state"]; len(states) > 0 {
		query.Del("state")
		for _, state := range states {
			if _, err := lifecycle.ParseState(state); err == nil {
				query.Add("state", state)
			}
		}
		if len(query["state"]) == 0 { // what has an unknown state has no state of this service
			filter := url.QueryEscape(noSandbox) + "=1"
			if own := query.Get("metadata"); own != "" {
				filter = own + "&" + filter
			}
			query.Set("metadata", filter)
		}
	}
	if size, err := strconv.Atoi(query.Get("pageSize")); err == nil && size > maxPageSize {
		query.Set("pageSize", strconv.Itoa(maxPageSize))
	}
	found := x.ask(http.MethodGet, sandboxesPath, query, nil)
	if found.ok() && found.tooLarge {
		found.refuse(x.w, fmt.Sprintf("query/pageSize: one page of these sandboxes has more than %d MiB: ask for fewer at a time", maxAnswer>>20))
		return
	}
	var page object
	var items []object
	if !found.ok() || json.Unmarshal(found.body.Bytes(), &page) != nil || json.Unmarshal(page["items"], &items) != nil {
		found.send(x.w)
		return
	}
	for _, sandbox := range items {
		fromSandbox(sandbox)
	}
	page["items"] = encode(items)
	found.sendJSON(x.w, page)
}

func (x *exchange) patchMetadata() {
	patch, ok := x.takeObject()
	if !ok {
		return
	}
	delete(patch, expiryKey)
	if patched := x.ask(http.MethodPatch, x.r.URL.Path, x.r.URL.Query(), encode(patch)); !patched.ok() {
		patched.send(x.w)
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

// renew also moves the expiry backwards, which the service does not: the earlier time is a promise that [Edge.Keep] keeps.
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
		ExpiresAt time.Time         `json:"expiresAt"`
		Metadata  map[string]string `json:"metadata"`
		Status    struct {
			State lifecycle.State `json:"state"`
		} `json:"status"`
	}
	if !found.ok() || json.Unmarshal(found.body.Bytes(), &sandbox) != nil {
		found.send(x.w)
		return
	}
	if sandbox.Status.State.CheckRenewable() != nil {
		asked().send(x.w) // the service says why
		return
	}
	promise := map[string]*string{expiryKey: nil}
	if wanted.After(sandbox.ExpiresAt) {
		renewed := asked()
		if _, requested := sandbox.Metadata[expiryKey]; renewed.ok() && requested {
			if kept := x.ask(http.MethodPatch, sandboxOf(x.r.URL.Path)+"/metadata", nil, encode(promise)); !kept.ok() {
				renewed = kept
			}
		}
		renewed.send(x.w)
		return
	}
	at := wanted.UTC().Format(time.RFC3339Nano)
	promise[expiryKey] = &at
	kept := x.ask(http.MethodPatch, sandboxOf(x.r.URL.Path)+"/metadata", nil, encode(promise))
	if !kept.ok() {
		kept.send(x.w)
		return
	}
	x.edge.expiryChanged()
	kept.sendJSON(x.w, map[string]string{"expiresAt": at})
}

// reportMetrics accepts what their SDKs report about themselves, and drops it.
func (x *exchange) reportMetrics() {
	allowed := x.ask(http.MethodGet, "/v1/version", nil, nil)
	if !allowed.ok() {
		allowed.send(x.w)
		return
	}
	x.w.Header().Set(requestIDHeader, x.id)
	x.w.WriteHeader(http.StatusNoContent)
}

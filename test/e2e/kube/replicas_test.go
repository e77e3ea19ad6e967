package kube_test

import (
	"bytes"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// TestReplicas sends requests of every kind round robin to two replicas of the service, two
// processes with the rights that the chart gives: whatever one answered holds at the other at once.
func TestReplicas(t *testing.T) {
	r := startReplicas(t)
	first, second := r.running(t), r.running(t)
	ids := []string{first, second}
	for _, part := range []struct {
		name string
		do   func(*testing.T)
	}{
		{"Idempotency", r.idempotency},
		{"Quota", r.quota},
		{"Changes", func(t *testing.T) { r.changes(t, ids) }},
		{"Work", func(t *testing.T) { r.work(t, ids) }},
		{"Events", func(t *testing.T) { r.events(t, first) }},
		{"Console", func(t *testing.T) { r.console(t, first) }},
		{"Agents", func(t *testing.T) { r.agents(t, second) }},
		{"Signatures", func(t *testing.T) { r.signatures(t, first) }},
		{"Pages", r.pages},
		{"Pauses", func(t *testing.T) { r.pauses(t, second) }},
		{"Ends", func(t *testing.T) { r.ends(t, ids) }},
		{"Keys", r.keys},
	} {
		before := r.sent.Load()
		t.Run(part.name, part.do)
		t.Logf("%s: %d requests", part.name, r.sent.Load()-before)
	}
	if sent := r.sent.Load(); sent < 1000 {
		t.Errorf("%d requests were sent, want 1000 at least", sent)
	}
}

// idempotency repeats creates at the other replica, one after the other and at the same time.
func (r *replicas) idempotency(t *testing.T) {
	request := conformance.Encode(t, r.services[0].Idle())
	for n := range 12 {
		key := fmt.Sprintf("key-%d-%d", n, time.Now().UnixNano())
		answers := make([]conformance.Answer, 4)
		if n < 8 {
			for i := range answers {
				answers[i] = r.send(t, http.MethodPost, "/v1/sandboxes", request, "Idempotency-Key", key)
			}
		} else {
			conformance.Concurrently([]int{0, 1, 2, 3}, func(i int) {
				answers[i] = r.send(t, http.MethodPost, "/v1/sandboxes", request, "Idempotency-Key", key)
			})
		}
		id := created(answers[0])
		for _, a := range answers {
			if a.Status != http.StatusAccepted || created(a) != id {
				t.Errorf("key %d: %s, want 202 and %s", n, a, id)
			}
		}
		r.want(t, http.StatusConflict, http.MethodPost, "/v1/sandboxes", strings.Replace(request, "600", "601", 1), "Idempotency-Key", key)
		r.want(t, http.StatusNoContent, http.MethodDelete, "/v1/sandboxes/"+id, "")
		if got := r.get(t, id).Status.State; got != "Stopping" && got != "Terminated" {
			t.Errorf("a deleted sandbox is %s at the other replica", got)
		}
		// A repeated request gets the sandbox as it is, and makes no other.
		if a := r.want(t, http.StatusAccepted, http.MethodPost, "/v1/sandboxes", request, "Idempotency-Key", key); created(a) != id {
			t.Errorf("after the deletion: %s, want %s", a, id)
		}
	}
}

// quota: a key that may have one sandbox has no second one from the other replica.
func (r *replicas) quota(t *testing.T) {
	request := conformance.Encode(t, r.services[0].Idle())
	for range 6 {
		id := created(r.want(t, http.StatusAccepted, http.MethodPost, "/v1/sandboxes", request, conformance.KeyHeader, limitedKey))
		second := r.want(t, http.StatusConflict, http.MethodPost, "/v1/sandboxes", request, conformance.KeyHeader, limitedKey)
		for _, made := range []string{id, created(second)} {
			if made == "" {
				continue
			}
			r.want(t, http.StatusNoContent, http.MethodDelete, "/v1/sandboxes/"+made, "", conformance.KeyHeader, limitedKey)
			r.services[0].Await(t, made, "Terminated")
			r.services[1].Await(t, made, "Terminated")
		}
	}
}

// changes reads at one replica what was changed at the other.
func (r *replicas) changes(t *testing.T, ids []string) {
	expires := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	for n := range 60 {
		id := ids[n/2%2]
		path := "/v1/sandboxes/" + id
		mark := fmt.Sprintf("%d", n)
		r.want(t, http.StatusOK, http.MethodPatch, path+"/metadata", fmt.Sprintf(`{"mark": %q}`, mark))
		if got := r.get(t, id).Metadata["mark"]; got != mark {
			t.Errorf("change %d: the other replica has %q", n, got)
		}
		expires = expires.Add(time.Second)
		r.want(t, http.StatusOK, http.MethodPost, path+"/renew-expiration", fmt.Sprintf(`{"expiresAt": %q}`, expires.Format(time.RFC3339)))
		if got := r.get(t, id).ExpiresAt; !got.Equal(expires) {
			t.Errorf("renewal %d: the other replica has %v, want %v", n, got, expires)
		}
		r.want(t, http.StatusOK, http.MethodPatch, path+"/metadata", fmt.Sprintf(`{"listed": %q}`, mark))
		listed := r.want(t, http.StatusOK, http.MethodGet, "/v1/sandboxes?metadata="+url.QueryEscape("listed="+mark), "")
		if !strings.Contains(listed.Body, id) {
			t.Errorf("change %d: the list of the other replica has no such sandbox", n)
		}
		r.want(t, http.StatusOK, http.MethodPatch, path+"/metadata", `{"listed": null}`) // an odd number: the replicas change roles
	}
}

// work uploads, downloads and runs commands through either.
func (r *replicas) work(t *testing.T, ids []string) {
	for n := range 45 {
		inside := "/v1/sandboxes/" + ids[n%2] + "/proxy/44772"
		content := strings.Repeat(fmt.Sprintf("file %d\n", n), 1000)
		file := fmt.Sprintf("/srv/file-%d", n)
		var form bytes.Buffer
		parts := multipart.NewWriter(&form)
		_ = parts.WriteField("metadata", fmt.Sprintf(`{"path": %q}`, file)) // a buffer takes everything
		part, err := parts.CreateFormFile("file", "file")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(part, content)
		_ = parts.Close()
		r.want(t, http.StatusOK, http.MethodPost, inside+"/files/upload", form.String(), "Content-Type", parts.FormDataContentType())
		if got := r.want(t, http.StatusOK, http.MethodGet, inside+"/files/download?path="+url.QueryEscape(file), ""); got.Body != content {
			t.Errorf("file %d has %d bytes, want %d", n, len(got.Body), len(content))
		}
		if got := r.want(t, http.StatusOK, http.MethodPost, inside+"/command", fmt.Sprintf(`{"command": "wc -l < %s"}`, file)); !strings.Contains(got.Body, `"1000"`) {
			t.Errorf("command %d: %s", n, got)
		}
		started := r.want(t, http.StatusOK, http.MethodPost, inside+"/command", `{"command": "echo one; echo two; echo three", "background": true}`)
		command := decoded[struct{ ID string }](t, started).ID
		whole := r.want(t, http.StatusOK, http.MethodGet, inside+"/command/"+command+"/stream", "").Body
		_, after, _ := strings.Cut(whole, "\nid: ")
		id, _, _ := strings.Cut(after, "\n")
		_, rest, _ := strings.Cut(whole, id+"\n")
		resumed := r.want(t, http.StatusOK, http.MethodGet, inside+"/command/"+command+"/stream", "", "Last-Event-ID", id).Body
		if !strings.Contains(resumed, "three") || !strings.HasSuffix(rest, resumed) {
			t.Errorf("command %d resumed after %s at the other replica:\n%s\nthe whole stream:\n%s", n, id, resumed, whole)
		}
	}
}

// events follows changes with a stream that goes on at the other replica each time.
func (r *replicas) events(t *testing.T, id string) {
	begun, open := r.services[0].StreamEvents(t, "/v1/events").Next()
	if !open {
		t.Fatal("the stream ended")
	}
	for n, last := 0, begun.ID; n < 30; n++ {
		mark := fmt.Sprintf("event %d", n)
		r.want(t, http.StatusOK, http.MethodPatch, "/v1/sandboxes/"+id+"/metadata", fmt.Sprintf(`{"mark": %q}`, mark))
		r.sent.Add(1)
		path := []string{"/v1/events", "/v1/sandboxes/" + id + "/events"}[n/2%2]
		seen := r.services[(n+1)%2].StreamEvents(t, path, "Last-Event-ID", fmt.Sprint(last)).Until(
			func(e conformance.StreamEvent) bool { return e.Type == "reset" || e.Metadata["mark"] == mark })
		for _, e := range seen {
			if e.ID <= last || e.Type == "reset" || e.Type == "metadata" && e.Metadata["mark"] != mark {
				t.Errorf("stream %d: event %d (%s, %v) after %d", n, e.ID, e.Type, e.Metadata, last)
			}
			last = max(last, e.ID)
		}
	}
}

// console signs in at one replica, and uses the session and its tickets at the other.
func (r *replicas) console(t *testing.T, id string) {
	for n := range 8 {
		b := r.signIn(t, conformance.AdminKey)
		for range 12 {
			r.want(t, http.StatusOK, http.MethodGet, "/console/api/v1/sandboxes/"+id, "", b...)
		}
		terminal := "/v1/sandboxes/" + id + "/proxy/44772/pty/" + r.terminal(t, id) + "/attach"
		ticket := decoded[struct{ Ticket string }](t, r.want(t, http.StatusCreated, http.MethodPost, "/console/tickets", fmt.Sprintf(`{"path": %q}`, terminal),
			b...)).Ticket
		for i, want := range []int{http.StatusSwitchingProtocols, http.StatusUnauthorized, http.StatusUnauthorized} {
			if got := r.dial(t, "/console/api"+terminal+"?console-ticket="+ticket, b); got != want {
				t.Errorf("session %d: use %d of a ticket: %d, want %d", n, i+1, got, want)
			}
		}
		r.want(t, http.StatusNoContent, http.MethodDelete, "/console/session", "", b...)
		r.want(t, http.StatusUnauthorized, http.MethodGet, "/console/api/v1/sandboxes/"+id, "", b...)
		r.want(t, http.StatusUnauthorized, http.MethodGet, "/console/api/v1/sandboxes/"+id, "", b...)
	}
}

// agents speak MCP in sessions of which each message reaches another replica.
func (r *replicas) agents(t *testing.T, id string) {
	for n := range 8 {
		agent := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
		session, err := agent.Connect(t.Context(), &mcp.StreamableClientTransport{
			Endpoint: "http://replicas/mcp", DisableStandaloneSSE: true, HTTPClient: &http.Client{Transport: r, Timeout: wait.Patience()},
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 8 {
			if tools, err := session.ListTools(t.Context(), nil); err != nil || len(tools.Tools) == 0 {
				t.Errorf("agent %d: the tools: %v", n, err)
			}
			word := fmt.Sprintf("agent-%d-%d", n, i)
			result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "run_command", Arguments: map[string]any{"sandbox": id, "command": "echo " + word}})
			if err != nil || result.IsError || !strings.Contains(conformance.Encode(t, result), word) {
				t.Errorf("agent %d, call %d: %+v, %v", n, i, result, err)
			}
		}
		if err := session.Close(); err != nil {
			t.Error(err)
		}
	}
}

// signatures uses at one replica what the other signed.
func (r *replicas) signatures(t *testing.T, id string) {
	for n := range 15 {
		signed := decoded[lifecycle.Endpoint](t, r.want(t, http.StatusOK, http.MethodGet,
			fmt.Sprintf("/v1/sandboxes/%s/endpoints/44772?expires=3600", id), ""))
		u, err := url.Parse(signed.URL)
		if err != nil {
			t.Fatal(err)
		}
		u.Path = strings.TrimSuffix(u.Path, "/") + "/ping"
		r.want(t, http.StatusOK, http.MethodGet, u.RequestURI(), "", conformance.KeyHeader, "")
		if n%2 == 0 {
			r.want(t, http.StatusOK, http.MethodGet, "/health", "") // the replicas change roles
		}
	}
}

// pages lists everything page by page, each page at the other replica.
func (r *replicas) pages(t *testing.T) {
	var all []string
	for n := range 6 {
		var ids []string
		for page := 1; ; page++ {
			got := decoded[lifecycle.SandboxList](t, r.want(t, http.StatusOK, http.MethodGet, fmt.Sprintf("/v1/sandboxes?page=%d&pageSize=3", page), ""))
			ids = append(ids, conformance.IDs(got.Items)...)
			if !got.Pagination.HasNextPage {
				break
			}
		}
		if n == 0 {
			all = ids
		}
		distinct := slices.Compact(slices.Sorted(slices.Values(ids)))
		if !slices.Equal(ids, all) || len(distinct) != len(ids) || len(ids) < 12 {
			t.Errorf("listing %d: %d sandboxes, %q; before %q", n, len(ids), ids, all)
		}
	}
}

// pauses reads at one replica what was paused and resumed at the other.
func (r *replicas) pauses(t *testing.T, id string) {
	for range 5 {
		for _, step := range [][2]string{{"pause", "Paused"}, {"resume", "Running"}} {
			r.want(t, http.StatusAccepted, http.MethodPost, "/v1/sandboxes/"+id+"/"+step[0], "")
			settled := r.want(t, http.StatusOK, http.MethodGet, "/v1/sandboxes/"+id, "", "Prefer", "wait=30")
			if got := decoded[lifecycle.Sandbox](t, settled).Status.State; got != step[1] {
				t.Errorf("after %s the other replica has %s", step[0], got)
			}
			if got := r.get(t, id).Status.State; got != step[1] {
				t.Errorf("after %s a replica has %s", step[0], got)
			}
		}
	}
}

// ends deletes at one replica, and asks the other.
func (r *replicas) ends(t *testing.T, ids []string) {
	for _, id := range ids {
		r.want(t, http.StatusNoContent, http.MethodDelete, "/v1/sandboxes/"+id, "")
		if got := r.get(t, id).Status.State; got != "Stopping" && got != "Terminated" {
			t.Errorf("a deleted sandbox is %s at the other replica", got)
		}
		settled := r.want(t, http.StatusOK, http.MethodGet, "/v1/sandboxes/"+id, "", "Prefer", "wait=60")
		if got := decoded[lifecycle.Sandbox](t, settled).Status.State; got != "Terminated" {
			t.Errorf("after its end a sandbox is %s", got)
		}
		r.want(t, http.StatusConflict, http.MethodDelete, "/v1/sandboxes/"+id, "")
	}
}

// keys replaces an API key and restarts one replica after the other, as an upgrade does: sessions
// of that key have ended, and those of others go on.
func (r *replicas) keys(t *testing.T) {
	kept, replaced := r.signIn(t, conformance.AdminKey), r.signIn(t, replacedKey)
	list := "/console/api/v1/sandboxes"
	for range 2 {
		r.want(t, http.StatusOK, http.MethodGet, list, "", kept...)
		r.want(t, http.StatusOK, http.MethodGet, list, "", replaced...)
		r.want(t, http.StatusOK, http.MethodGet, "/health", "")
	}
	for _, s := range r.services {
		text, err := os.ReadFile(s.File)
		if err != nil {
			t.Fatal(err)
		}
		text = bytes.Replace(text, []byte(conformance.Digest(replacedKey)), []byte(conformance.Digest("another-key-of-the-same-viewer")), 1)
		if err := os.WriteFile(s.File, text, 0o600); err != nil {
			t.Fatal(err)
		}
		s.Halt(t)
		s.Boot(t)
	}
	for range 4 {
		r.want(t, http.StatusOK, http.MethodGet, list, "", kept...)
		r.want(t, http.StatusUnauthorized, http.MethodGet, list, "", replaced...)
		r.want(t, http.StatusUnauthorized, http.MethodGet, "/v1/sandboxes", "", conformance.KeyHeader, replacedKey)
	}
}

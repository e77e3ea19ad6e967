package cells_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	gen "sandbox.internal/clients/go/execd"
	"sandbox.internal/openapi/conform"
	"sandbox.internal/openapi/document"
	"sandbox.internal/test/wait"
)

var execdContract = sync.OnceValues(document.LoadExecd)

// daemon is an execd, and a client of it whose every answer is held to the contract.
type daemon struct {
	client   *gen.Client
	contract *conform.Transport
}

// connect returns a client of the execd that a transport leads to.
func connect(t *testing.T, url string, transport http.RoundTripper) *daemon {
	t.Helper()
	document, err := execdContract()
	must(t, err)
	d := &daemon{contract: conform.New(document, transport, t)}
	d.client, err = gen.NewClient(url, gen.WithHTTPClient(&http.Client{Transport: d.contract, Timeout: wait.Patience()}))
	must(t, err)
	return d
}

// newContext creates a context, which the test deletes at its end, if it is still there.
func (d *daemon) newContext(t *testing.T, language string) string {
	t.Helper()
	response, err := d.client.CreateContext(t.Context(), nil, gen.ContextRequest{Language: language})
	var created gen.CodeContext
	must(t, json.Unmarshal(d.body(t, http.StatusOK, response, err), &created))
	t.Cleanup(func() {
		response, err := d.client.DeleteContext(context.WithoutCancel(t.Context()), created.ID)
		must(t, err)
		response.Body.Close()
		if response.StatusCode != http.StatusOK && response.StatusCode != http.StatusNotFound {
			t.Errorf("deleting the context: %s", response.Status)
		}
	})
	return created.ID
}

// start starts a cell in a context.
func (d *daemon) start(t *testing.T, id, code string) *stream {
	t.Helper()
	response, err := d.client.RunCode(context.WithoutCancel(t.Context()), nil, gen.CodeRequest{Code: code, Context: &gen.ContextChoice{ID: &id}})
	return d.stream(t, response, err)
}

// run runs a cell to its end.
func (d *daemon) run(t *testing.T, id, code string) said {
	t.Helper()
	return d.start(t, id, code).all(1)
}

// alone runs a cell without a context.
func (d *daemon) alone(t *testing.T, language, code string) said {
	t.Helper()
	response, err := d.client.RunCode(t.Context(), nil, gen.CodeRequest{Code: code, Language: &language})
	return d.stream(t, response, err).all(1)
}

// command runs a shell command beside the kernels, and returns what it printed.
func (d *daemon) command(t *testing.T, command string) string {
	t.Helper()
	response, err := d.client.RunCommand(t.Context(), nil, gen.CommandRequest{Command: command})
	events := d.stream(t, response, err).all(1)
	if events.end().Type != "execution_complete" {
		t.Fatalf("%s: %s; stderr %q", command, events.end().data, events.text("stderr"))
	}
	return strings.TrimSpace(events.text("stdout"))
}

// exists reports whether a context is known.
func (d *daemon) exists(t *testing.T, id string) bool {
	t.Helper()
	response, err := d.client.GetContext(t.Context(), id)
	must(t, err)
	defer response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// gone waits until a context is 404.
func (d *daemon) gone(t *testing.T, id string) {
	t.Helper()
	wait.Until(t, "the context is gone", func() bool { return !d.exists(t, id) })
}

func (d *daemon) contexts(t *testing.T, language string) []gen.CodeContext {
	t.Helper()
	response, err := d.client.ListContexts(t.Context(), &gen.ListContextsParams{Language: language})
	var list []gen.CodeContext
	must(t, json.Unmarshal(d.body(t, http.StatusOK, response, err), &list))
	return list
}

// body returns the body of an answer that must have a status.
func (d *daemon) body(t *testing.T, status int, response *http.Response, err error) []byte {
	t.Helper()
	must(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	must(t, err)
	if response.StatusCode != status {
		t.Fatalf("status %d, want %d: %s", response.StatusCode, status, text)
	}
	return text
}

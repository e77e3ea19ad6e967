package api_test

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"testing"

	gen "sandbox.internal/clients/go/execd"
	"sandbox.internal/execd/config"
	"sandbox.internal/openapi/conform"
)

// What cells do is tested in test/e2e/cells; here are only the answers to requests about them.

// codeRefusals are requests about code that must fail, to a daemon with kernels and to one whose
// Jupyter Server is not there.
func codeRefusals(t *testing.T, d *daemon, transport *conform.Transport) []answer {
	bad := func(operation, name, target, body string, says ...string) answer {
		return answer{on: d, operation: operation, name: name, target: target, body: body, status: 400, code: "INVALID_REQUEST_BODY", says: says}
	}
	missing := func(operation, target, body, what string) answer {
		return answer{on: d, operation: operation, target: target, body: body, status: 404, code: "NOT_FOUND", says: []string{what}}
	}
	alone := connect(t, startWith(t, config.Settings{JupyterHost: "http://127.0.0.1:1"}).url, transport)
	unavailable := func(operation, target, body string) answer {
		return answer{on: alone, operation: operation, target: target, body: body, status: 503, code: "SERVICE_UNAVAILABLE", says: []string{"no kernel"}}
	}
	id := d.newContext(t, "python")
	event := bad("streamExecution", "an event that is not there", "GET /code/executions/"+d.execution(t, id)+"/stream", "", "Last-Event-ID", "99")
	event.header = map[string]string{"Last-Event-ID": "99"}
	return []answer{
		bad("createContext", "a language without a kernel", "POST /code/context", `{"language":"cobol"}`, "language", "installed are"),
		bad("createContext", "no language", "POST /code/context", `{}`, "body/language"),
		bad("runCode", "no code", "POST /code", `{}`, "body/code"),
		bad("runCode", "an unknown field", "POST /code", `{"code":"1","contxt":{}}`, "body/contxt"),
		bad("runCode", "two languages", "POST /code", `{"code":"1","language":"bash","context":{"language":"python"}}`, "body/language"),
		bad("runCode", "a language that is not the context's", "POST /code", `{"code":"1","context":{"id":"`+id+`","language":"bash"}}`, "context", "python"),
		bad("interruptCode", "no id", "DELETE /code", "", "id"),
		bad("listContexts", "no language", "GET /code/contexts", "", "language"),
		bad("deleteContexts", "no language", "DELETE /code/contexts", "", "language"),
		event,
		missing("runCode", "POST /code", `{"code":"1","context":{"id":"none"}}`, "none"),
		missing("interruptCode", "DELETE /code?id=none", "", "none"),
		missing("getContext", "GET /code/contexts/none", "", "none"),
		missing("deleteContext", "DELETE /code/contexts/none", "", "none"),
		missing("streamExecution", "GET /code/executions/none/stream", "", "none"),
		unavailable("createContext", "POST /code/context", `{"language":"python"}`),
		unavailable("runCode", "POST /code", `{"code":"1"}`),
	}
}

// codeSuccesses calls every operation on code once.
func codeSuccesses(t *testing.T, d *daemon) {
	id := d.newContext(t, "python")
	execution := d.execution(t, id)
	response, err := d.client.StreamExecution(t.Context(), execution, &gen.StreamExecutionParams{})
	d.stream(t, response, err).ends(t, "")
	body200(t)(d.client.InterruptCode(t.Context(), &gen.InterruptCodeParams{ID: id}))
	body200(t)(d.client.GetContext(t.Context(), id))
	body200(t)(d.client.ListContexts(t.Context(), &gen.ListContextsParams{Language: "python"}))
	body200(t)(d.client.DeleteContext(t.Context(), id))
	body200(t)(d.client.DeleteContexts(t.Context(), &gen.DeleteContextsParams{Language: "python"}))
}

// execution runs a cell in a context and returns the execution's id.
func (d *daemon) execution(t *testing.T, id string) string {
	t.Helper()
	s := d.cell(t, id, "1")
	s.all(1)
	return s.response.Header.Get("X-Execution-ID")
}

func (d *daemon) newContext(t *testing.T, language string) string {
	t.Helper()
	var created gen.CodeContext
	must(t, json.Unmarshal(body200(t)(d.client.CreateContext(t.Context(), nil, gen.ContextRequest{Language: language})), &created))
	return created.ID
}

// cell starts a cell in a context.
func (d *daemon) cell(t *testing.T, id, source string) *stream {
	t.Helper()
	response, err := d.client.RunCode(context.WithoutCancel(t.Context()), nil, gen.CodeRequest{Code: source, Context: &gen.ContextChoice{ID: &id}})
	return d.stream(t, response, err)
}

// ends reads a cell's stream to its end, which must be a good one with that output.
func (s *stream) ends(t *testing.T, stdout string) {
	t.Helper()
	events := s.all(1)
	if got := joined(events, "stdout"); got != stdout || last(events).Type != "execution_complete" {
		t.Errorf("stdout %q, want %q; last event: %s", got, stdout, last(events).data)
	}
}

func last(events []event) event { return events[len(events)-1] }

// body200 returns the body of an answer that must be a success.
func body200(t *testing.T) func(*http.Response, error) []byte {
	return func(response *http.Response, err error) []byte {
		t.Helper()
		return body(t, response, err)
	}
}

// TestDisplaysAreResults: what a cell shows beside its value has the same type of event.
func TestDisplaysAreResults(t *testing.T) {
	t.Parallel()
	d := start(t)
	events := d.cell(t, d.newContext(t, "python"), "display('shown')\n'value'").all(1)
	var got []string
	for _, e := range events {
		if e.Type == "result" {
			got = append(got, string(e.Results["text/plain"]))
		}
	}
	if want := []string{`"'shown'"`, `"'value'"`}; !slices.Equal(got, want) {
		t.Errorf("the results are %q, want %q", got, want)
	}
}

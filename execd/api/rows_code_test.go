package api_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	gen "sandbox.internal/clients/go/execd"
)

func TestRowsOfCode(t *testing.T) {
	t.Parallel()
	d := start(t)
	id := d.newContext(t, "python")
	t.Run("row execd/context/id language", func(t *testing.T) {
		got := d.object(t, "GET", "/code/contexts/"+id, "")
		got.wantString(t, "id", id)
		got.wantString(t, "language", "python")
	})
	t.Run("row execd/transitions/state persists", func(t *testing.T) {
		d.cell(t, id, "kept = 1").ends(t, "")
		d.cell(t, id, "print(kept)").ends(t, "1\n")
	})
	t.Run("row execd/operations/POST /code/context", func(t *testing.T) {
		d.object(t, "POST", "/code/context", `{"language":"python"}`).wantString(t, "language", "python")
		answer{on: d, target: "POST /code/context", body: `{}`, status: 400, code: "INVALID_REQUEST_BODY", says: []string{"language"}}.check(t)
	})
	t.Run("row execd/operations/POST /code", func(t *testing.T) {
		for range 2 { // without a context nothing is kept
			response, err := d.client.RunCode(t.Context(), nil, gen.CodeRequest{Code: "print('x' in globals()); x = 1"})
			d.stream(t, response, err).ends(t, "False\n")
		}
	})
	t.Run("row execd/operations/GET /code/contexts", func(t *testing.T) {
		_, data := d.ask(t, "GET", "/code/contexts?language=python", "")
		var list []object
		must(t, json.Unmarshal(data, &list))
		if !strings.Contains(string(data), id) || len(list) == 0 {
			t.Errorf("the contexts are %s", data)
		}
	})
	t.Run("row execd/operations/GET /code/contexts/{context_id}", func(t *testing.T) {
		d.object(t, "GET", "/code/contexts/"+id, "").wantString(t, "id", id)
	})
	t.Run("row execd/operations/DELETE /code", func(t *testing.T) {
		s := d.cell(t, id, "import time\nprint('on', flush=True)\nwhile True: time.sleep(0.01)")
		s.until("stdout")
		d.empty(t, "DELETE", "/code?id="+id, "")
		if end := s.until("error"); end.Error.Ename != "KeyboardInterrupt" {
			t.Errorf("the end is %s", end.data)
		}
	})
	gone := func(t *testing.T, id string) {
		t.Helper()
		if response, data := d.ask(t, "GET", "/code/contexts/"+id, ""); response.StatusCode != http.StatusNotFound {
			t.Errorf("a deleted context: %d %s", response.StatusCode, data)
		}
	}
	t.Run("row execd/operations/DELETE /code/contexts/{context_id}", func(t *testing.T) {
		other := d.newContext(t, "python")
		d.empty(t, "DELETE", "/code/contexts/"+other, "")
		gone(t, other)
	})
	t.Run("row execd/operations/DELETE /code/contexts", func(t *testing.T) {
		d.empty(t, "DELETE", "/code/contexts?language=python", "")
		gone(t, id)
	})
}

func TestRowsOfCodeEvents(t *testing.T) {
	t.Parallel()
	d := start(t)
	events := d.cell(t, d.newContext(t, "python"), "1 + 1").all(1)
	t.Run("row execd/event/execution_count", func(t *testing.T) {
		if end := last(events); end.Count != 1 {
			t.Errorf("the end is %s", end.data)
		}
	})
	t.Run("row execd/event/results", func(t *testing.T) {
		for _, e := range events {
			if content, has := e.Results["text/plain"]; has && string(content) == `"2"` {
				return
			}
		}
		t.Errorf("no event has the result; the end is %s", last(events).data)
	})
	t.Run("row execd/event/error", func(t *testing.T) {
		end := last(d.cell(t, d.newContext(t, "python"), "1/0").all(1))
		if end.Type != "error" || end.Error == nil || end.Error.Ename != "ZeroDivisionError" || len(end.Error.Traceback) == 0 {
			t.Errorf("the end is %s", end.data)
		}
	})
	has := func(t *testing.T, kind string) {
		t.Helper()
		for _, e := range events {
			if e.Type == kind {
				return
			}
		}
		t.Errorf("no %s among %d events", kind, len(events))
	}
	t.Run("row execd/events/result", func(t *testing.T) { has(t, "result") })
	t.Run("row execd/events/execution_count", func(t *testing.T) { has(t, "execution_count") })
}

package kube_test

import (
	"encoding/json"
	"io"
	"strings"
	"testing"

	"sandbox.internal/clients/go/execd"
	"sandbox.internal/test/e2e/conformance"
)

// testCode runs cells in a Python context of a sandbox on the cluster, and checks that the context
// keeps its state over a pause.
func testCode(t *testing.T) {
	s := conformance.Start(t, onKubernetes(), conformance.Plan{})
	r := conformance.Request(pythonImage, "sleep", "infinity")
	memory := "512Mi"
	r.ResourceLimits.Memory = &memory
	id := s.Running(t, r)
	box := s.Enter(t, id)

	made, err := box.Client.CreateContextWithResponse(t.Context(), nil,
		execd.ContextRequest{Language: "python"})
	if err != nil {
		t.Fatal(err)
	}
	if made.JSON200 == nil {
		t.Fatalf("a context: %s %s", made.Status(), made.Body)
	}
	context := &execd.ContextChoice{ID: &made.JSON200.ID}
	if got := cell(t, box,
		execd.CodeRequest{Code: "answer = 6 * 7\nprint('set')", Context: context}); got != "set" {
		t.Errorf("the first cell printed %q", got)
	}
	s.Pause(t, id)
	s.Resume(t, id)
	if got := cell(t, box,
		execd.CodeRequest{Code: "print(answer)", Context: context}); got != "42" {
		t.Errorf("after a pause the context's variable is %q", got)
	}
}

// cell runs a cell and returns what it printed.
func cell(t *testing.T, box *conformance.Box, request execd.CodeRequest) string {
	t.Helper()
	response, err := box.Client.RunCode(t.Context(), nil, request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	stream, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	var printed strings.Builder // the kernel may send a line in pieces
	complete := false
	for line := range strings.Lines(string(stream)) {
		data, ok := strings.CutPrefix(line, "data:")
		if !ok {
			continue
		}
		var event execd.StreamEvent
		if err := json.Unmarshal([]byte(data), &event); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		switch event.Type {
		case "stdout":
			printed.WriteString(conformance.Value(event.Text))
		case "execution_complete":
			complete = true
		}
	}
	if !complete {
		t.Fatalf("status %d: the cell did not complete:\n%s", response.StatusCode, stream)
	}
	return strings.TrimSuffix(printed.String(), "\n")
}

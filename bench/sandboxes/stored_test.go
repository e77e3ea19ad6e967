package sandboxes

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/rig"
)

// answering is a server that gives every request the same answer.
func answering(t *testing.T, answer string) *rig.Process {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, answer) // a client that is gone fails on its own side
	}))
	t.Cleanup(server.Close)
	return &rig.Process{URL: server.URL, Client: server.Client()}
}

// page is a list of n sandboxes, of which the first is called s0.
func page(n int) string {
	items := make([]string, n)
	for i := range items {
		items[i] = fmt.Sprintf(`{"id":"s%d"}`, i)
	}
	return `{"items":[` + strings.Join(items, ",") + `]}`
}

// TestWrongReadsAreNoAnswers: a service that answers quickly with something else is not measured.
func TestWrongReadsAreNoAnswers(t *testing.T) {
	ids := []string{"s0", "s1", "s2"}
	for name, check := range map[string]func([]byte) error{
		"get":  func(answer []byte) error { return isSandbox(answer, "s0") },
		"list": func(answer []byte) error { return isList(answer, ids) },
	} {
		for _, answer := range []string{"", "{}", `{"items":[]}`, `{"id":"s1"}`, page(2), page(4),
			strings.Replace(page(3), "s1", "s0", 1)} {
			run := &measure.Run{Dir: t.TempDir(), Scale: measure.ScaleQuick}
			s := &rig.Service{Process: answering(t, answer)}
			if _, err := measureReads(t.Context(), run, s.Reader("/"), check); !errors.Is(err, measure.ErrLost) {
				t.Errorf("%s that is answered with %q: %v", name, answer, err)
			}
		}
	}
	if err := isSandbox([]byte(`{"id":"s0"}`), "s0"); err != nil {
		t.Error(err)
	}
	if err := isList([]byte(`{"items":[{"id":"s2"},{"id":"s0"},{"id":"s1"}]}`), ids); err != nil {
		t.Error(err)
	}
}

// TestAnswersAreCompared: each answer of a rate is to be the first one, and not only as long.
func TestAnswersAreCompared(t *testing.T) {
	for answer, lost := range map[string]bool{page(3): false, page(4): true, "": true,
		strings.Replace(page(3), "s1", "s0", 1): true} {
		p := answering(t, answer)
		from := rig.Getter{Client: p.Client, URL: p.URL}
		if _, err := from.Rate(t.Context(), []byte(page(3)), &measure.Requests{}); errors.Is(err,
			measure.ErrLost) != lost {
			t.Errorf("%q: %v", answer, err)
		}
	}
}

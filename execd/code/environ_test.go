package code_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"sandbox.internal/execd/code"
	"sandbox.internal/execd/internal/invalid"
)

// TestEnvironmentOfACell: the variables are set before the cell and set back after it.
func TestEnvironmentOfACell(t *testing.T) {
	m := newManager(t, &fakeHost{})
	for _, language := range []string{"python", "bash"} {
		id := newContext(t, m, language)
		for _, test := range []struct {
			env  map[string]string
			want string // how much has been prepared when the cell runs
		}{{nil, "stdout:0"}, {map[string]string{"A": "1"}, "stdout:1"}, {nil, "stdout:2"}} {
			got, _ := outcomeOf(t, execute(t, m, code.Spec{Code: "prepared", ContextID: id, Env: test.env}))
			if !strings.Contains(got, test.want+" ") {
				t.Errorf("%s, %v: %s, want %s", language, test.env, got, test.want)
			}
		}
	}
	id := newContext(t, m, "bash")
	for _, name := range []string{"", "a=b", "a\x00", "no name", "1"} {
		if _, err := m.Execute(t.Context(), code.Spec{ContextID: id, Env: map[string]string{name: ""}}); !invalid.Is(err) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := m.Execute(t.Context(), code.Spec{Language: "python", Env: map[string]string{"": ""}}); !invalid.Is(err) {
		t.Errorf("a cell without a context: %v", err)
	}
}

func TestContextsHaveDirectories(t *testing.T) {
	m := newManager(t, &fakeHost{})
	dir := t.TempDir()
	made, err := m.CreateContextIn(t.Context(), "python", dir)
	if err != nil || made.Dir != dir {
		t.Fatal(made, err)
	}
	for _, spec := range []code.Spec{{ContextID: made.ID}, {Default: true, Language: "bash", Dir: dir}} {
		spec.Code = "dir"
		if got, _ := outcomeOf(t, execute(t, m, spec)); !strings.Contains(got, "stdout:"+dir+" ") {
			t.Errorf("%+v: %s", spec, got)
		}
	}
	if err := os.WriteFile(dir+"/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{dir + "/missing", dir + "/file"} {
		if _, err := m.CreateContextIn(t.Context(), "python", bad); !invalid.Is(err) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// TestRestartContext: the context has another kernel under the same id.
func TestRestartContext(t *testing.T) {
	host := &fakeHost{}
	m := newManager(t, host)
	dir := t.TempDir()
	made, err := m.CreateContextIn(t.Context(), "python", dir)
	if err != nil {
		t.Fatal(err)
	}
	running := execute(t, m, code.Spec{Code: "wait", ContextID: made.ID})
	started(t, running)
	waiting := execute(t, m, code.Spec{Code: "number", ContextID: made.ID})
	if err := m.RestartContext(t.Context(), made.ID); err != nil {
		t.Fatal(err)
	}
	for _, e := range []*code.Execution{running, waiting} {
		if _, outcome := outcomeOf(t, e); outcome.Error == nil || outcome.Error.Name != "ContextEnded" {
			t.Errorf("a cell of the old kernel: %+v", outcome)
		}
	}
	if living := host.living.Load(); living != 1 {
		t.Errorf("%d kernels live", living)
	}
	if got, _ := outcomeOf(t, execute(t, m, code.Spec{Code: "number", ContextID: made.ID})); !strings.Contains(got, "stdout:2 ") {
		t.Errorf("the kernel is %s", got)
	}
	if got, _ := outcomeOf(t, execute(t, m, code.Spec{Code: "dir", ContextID: made.ID})); !strings.Contains(got, "stdout:"+dir+" ") {
		t.Errorf("the directory is %s", got)
	}
	if contexts := m.Contexts(""); len(contexts) != 1 || contexts[0] != made {
		t.Errorf("the contexts are %v", contexts)
	}
	host.refuse.Store(true)
	if err := m.RestartContext(t.Context(), made.ID); !errors.Is(err, code.ErrUnavailable) {
		t.Errorf("a restart that fails: %v", err)
	}
	if got, _ := outcomeOf(t, execute(t, m, code.Spec{Code: "number", ContextID: made.ID})); !strings.Contains(got, "stdout:2 ") {
		t.Errorf("after it the kernel is %s", got)
	}
	if err := m.RestartContext(t.Context(), "none"); !errors.Is(err, code.ErrNotFound) {
		t.Errorf("a context that is not there: %v", err)
	}
}

// TestRestartDefaultContext: it stays the default.
func TestRestartDefaultContext(t *testing.T) {
	m := newManager(t, &fakeHost{})
	awaitEnd(t, execute(t, m, code.Spec{Default: true, Code: "number"}))
	before := m.Contexts("")
	if err := m.RestartContext(t.Context(), before[0].ID); err != nil {
		t.Fatal(err)
	}
	if got, _ := outcomeOf(t, execute(t, m, code.Spec{Default: true, Code: "number"})); !strings.Contains(got, "stdout:2 ") {
		t.Errorf("the kernel is %s", got)
	}
	if after := m.Contexts(""); len(after) != 1 || after[0] != before[0] {
		t.Errorf("the contexts are %v, were %v", after, before)
	}
}

// TestDisplayAndResult: the log distinguishes them.
func TestDisplayAndResult(t *testing.T) {
	m := newManager(t, &fakeHost{})
	got, _ := outcomeOf(t, execute(t, m, code.Spec{Code: "show", ContextID: newContext(t, m, "python")}))
	if want := `init execution_count:1 display:{"text/plain":"x"} result:{"text/plain":"x"} execution_complete`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

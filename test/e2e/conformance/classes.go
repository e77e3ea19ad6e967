package conformance

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
)

// testRuntimeClasses creates sandboxes in a class that is configured, and in ones that are not.
func testRuntimeClasses(t *testing.T, b Backend) {
	const filtered, unfiltered = "plain", "own-network"
	s := Start(t, b, Plan{Program: true, Settings: classes(b.RuntimeHandler(t), filtered, unfiltered)})
	version, err := s.API.GetVersionWithResponse(t.Context())
	if err != nil || version.JSON200 == nil ||
		!slices.Equal(version.JSON200.RuntimeClasses, []string{filtered, unfiltered}) {
		t.Errorf("the version has the classes of %+v, %v", version, err)
	}
	request := s.Idle()
	without := s.Create(t, request)
	class := filtered
	request.RuntimeClass = &class
	with := s.Running(t, request)
	s.Enter(t, with).Want(t, "echo $((6 * 7))", "42\n")
	check := func(when string) {
		t.Helper()
		if got := Value(s.Get(t, with).RuntimeClass); got != filtered {
			t.Errorf("%s the class of a sandbox is %q, want %q", when, got, filtered)
		}
		for _, sandbox := range s.Everything(t) {
			if got := sandbox.RuntimeClass; (got != nil) != (sandbox.ID == with) {
				t.Errorf("%s the list has %s with class %q", when, sandbox.ID, Value(got))
			}
		}
	}
	s.Await(t, without, "Running")
	check("at once")
	s.Kill()
	s.Boot(t)
	check("after a kill")
	s.Act(t, http.MethodPost, with+"/pause", http.StatusAccepted)
	s.Await(t, with, "Paused")
	s.Act(t, http.MethodPost, with+"/resume", http.StatusAccepted)
	s.Await(t, with, "Running")
	s.Enter(t, with).Want(t, "echo $((6 * 7))", "42\n")

	for name, c := range map[string]struct {
		change map[string]any
		words  []string
	}{
		"unknown": {map[string]any{"runtimeClass": "kata"},
			[]string{"runtimeClass", `"kata"`, filtered + ", " + unfiltered}},
		"in upper case": {map[string]any{"runtimeClass": "Plain"}, []string{"runtimeClass", filtered}},
		"empty":         {map[string]any{"runtimeClass": ""}, []string{"runtimeClass", "1"}},
		"no string":     {map[string]any{"runtimeClass": true}, []string{"runtimeClass", "string"}},
		"no firewall": {map[string]any{"runtimeClass": unfiltered,
			"networkPolicy": map[string]any{"defaultAction": "deny"}}, []string{"networkPolicy"}},
	} {
		t.Run(name, func(t *testing.T) {
			WantProblem(t, s.Send(t, http.MethodPost, "/v1/sandboxes", s.Body(t, c.change)), 400,
				"INVALID_REQUEST_BODY", c.words...)
		})
	}
}

// classes are settings with two runtime classes of one handler.
func classes(handler, filtered, unfiltered string) string {
	return fmt.Sprintf("[[runtime.classes]]\nname = %q\nhandler = %q\negress_sidecar = true\n"+
		"[[runtime.classes]]\nname = %q\nhandler = %q\n", filtered, handler, unfiltered, handler)
}

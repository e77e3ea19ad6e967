package e2b_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/test/wait"
)

// held returns the kinds of what keeps the sandbox awake, sorted.
func (d *daemon) held(t *testing.T) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.url+"/holds", nil)
	must(t, err)
	request.Header.Set(tokenHeader, token)
	response, err := d.http.Do(request)
	must(t, err)
	defer response.Body.Close()
	var list struct {
		Holds []struct{ Kind string }
	}
	must(t, json.NewDecoder(response.Body).Decode(&list))
	var kinds []string
	for _, hold := range list.Holds {
		kinds = append(kinds, hold.Kind)
	}
	slices.Sort(kinds)
	return strings.Join(kinds, " ")
}

// TestProcessesKeepTheSandboxAwake: a process does without a client, and a terminal with one.
func TestProcessesKeepTheSandboxAwake(t *testing.T) {
	t.Parallel()
	d := start(t)
	until := func(want string) {
		t.Helper()
		wait.Until(t, "the sandbox is held by "+want, func() bool { return d.held(t) == want }, func() any { return d.held(t) })
	}
	kill := func(f *follower) {
		d.succeeds(t, "process.Process/SendSignal", message{"process": f.by(), "signal": "SIGNAL_SIGKILL"})
	}
	f := d.run(t, message{"process": message{"cmd": "sleep", "args": []string{"1000"}}}, nil)
	until("command request")
	f.leave()
	until("command")
	kill(f)
	until("")

	f = d.run(t, message{"process": message{"cmd": "cat"}, "pty": message{"size": message{"cols": 9, "rows": 9}}}, nil)
	until("request terminal")
	f.leave()
	until("")
	again := d.follow(t, f.by(), nil)
	until("request terminal")
	kill(f)
	again.all()
	until("")
}

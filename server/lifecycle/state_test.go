package lifecycle_test

import (
	"strings"
	"testing"

	"sandbox.internal/server/lifecycle"
)

// row is one arrow of a transitions table.
type row struct {
	from    lifecycle.State
	trigger lifecycle.Trigger
}

// documented is the table of the lifecycle document, "States and transitions", row by row.
func documented() map[row]lifecycle.State {
	return map[row]lifecycle.State{
		{"Pending", "provisioned"}: "Running",
		{"Running", "pause"}:       "Pausing",
		{"Pausing", "paused"}:      "Paused",
		{"Running", "delete"}:      "Stopping",
		{"Running", "expire"}:      "Stopping",
		{"Paused", "delete"}:       "Stopping",
		{"Paused", "expire"}:       "Stopping",
		{"Stopping", "terminated"}: "Terminated",
		{"Pending", "fail"}:        "Failed",
		{"Running", "fail"}:        "Failed",
		{"Paused", "fail"}:         "Failed",
		{"Stopping", "fail"}:       "Failed",
	}
}

// extensions are what Transitions says that it adds. The document's Paused → Running is the first
// two rows.
func extensions() map[row]lifecycle.State {
	return map[row]lifecycle.State{
		{"Paused", "resume"}:    "Resuming",
		{"Resuming", "resumed"}: "Running",
		{"Running", "stopped"}:  "Paused",
		{"Pausing", "stopped"}:  "Paused",
		{"Resuming", "stopped"}: "Paused",
		{"Running", "rollback"}: "Resuming",
		{"Paused", "rollback"}:  "Resuming",
		{"Resuming", "delete"}:  "Stopping",
		{"Resuming", "expire"}:  "Stopping",
		{"Resuming", "fail"}:    "Failed",
		{"Pending", "delete"}:   "Stopping",
		{"Pending", "expire"}:   "Stopping",
		{"Pausing", "delete"}:   "Stopping",
		{"Pausing", "expire"}:   "Stopping",
		{"Pausing", "fail"}:     "Failed",
		{"Pending", "exit"}:     "Stopping",
		{"Running", "exit"}:     "Stopping",
		{"Pausing", "exit"}:     "Stopping",
		{"Paused", "exit"}:      "Stopping",
		{"Resuming", "exit"}:    "Stopping",
	}
}

func expectedTransitions() map[row]lifecycle.State {
	want := documented()
	for arrow, to := range extensions() {
		want[arrow] = to
	}
	return want
}

func TestTransitions(t *testing.T) {
	want := expectedTransitions()
	for _, got := range lifecycle.Transitions() {
		arrow := row{got.From, got.Trigger}
		if to, ok := want[arrow]; !ok || to != got.To {
			t.Errorf("%s on %s leads to %s; want %q", got.From, got.Trigger, got.To, to)
		}
		delete(want, arrow)
	}
	for arrow, to := range want {
		t.Errorf("missing, or there twice: %s on %s to %s", arrow.from, arrow.trigger, to)
	}
}

func TestNext(t *testing.T) {
	want := expectedTransitions()
	states := append(lifecycle.States(), "", "Unknown")
	triggers := []lifecycle.Trigger{
		lifecycle.TriggerProvisioned, lifecycle.TriggerPause, lifecycle.TriggerPaused, lifecycle.TriggerResume, lifecycle.TriggerResumed, lifecycle.TriggerStopped, lifecycle.TriggerRollback,
		lifecycle.TriggerDelete, lifecycle.TriggerExpire, lifecycle.TriggerExit, lifecycle.TriggerTerminated, lifecycle.TriggerFail, "", "unknown",
	}
	for _, from := range states {
		for _, trigger := range triggers {
			to, ok := lifecycle.Next(from, trigger)
			wantTo, wantOK := want[row{from, trigger}]
			if to != wantTo || ok != wantOK {
				t.Errorf("Next(%q, %q) = %q, %t; want %q, %t", from, trigger, to, ok, wantTo, wantOK)
			}
		}
	}
}

func TestStateClasses(t *testing.T) {
	want := map[lifecycle.State]struct{ final, transient bool }{
		"Pending": {transient: true}, "Running": {}, "Pausing": {transient: true}, "Paused": {}, "Resuming": {transient: true},
		"Stopping": {transient: true}, "Terminated": {final: true}, "Failed": {final: true},
	}
	if got := len(lifecycle.States()); got != len(want) {
		t.Errorf("there are %d states, want %d", got, len(want))
	}
	for _, state := range lifecycle.States() {
		if class, ok := want[state]; !ok || state.Final() != class.final || state.Transient() != class.transient {
			t.Errorf("%s: final %t, transient %t; want %+v (known %t)", state, state.Final(), state.Transient(), class, ok)
		}
	}
}

func TestParseState(t *testing.T) {
	for _, state := range lifecycle.States() {
		for _, name := range []string{string(state), strings.ToLower(string(state)), strings.ToUpper(string(state))} {
			if got, err := lifecycle.ParseState(name); err != nil || got != state {
				t.Errorf("ParseState(%q) = %q, %v; want %q", name, got, err, state)
			}
		}
	}
	for _, name := range []string{"", "Runing", "Running,Paused", " Running"} {
		_, err := lifecycle.ParseState(name)
		expectInvalid(t, err, "state: ", "Pending", "Resuming", "Failed")
	}
}

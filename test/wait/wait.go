// Package wait bounds what tests wait for: conditions, channels, requests, connections and child
// processes, all by one [Patience].
//
// An event that a test waits for happens within moments on a quiet machine. The patience is far
// longer, so that a test fails for a defect and not for a busy machine. A wait that fails names
// what it was for and the last state that it saw.
package wait

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"
)

// FactorVariable is the environment variable with a number above 0 and at most 100, the factor of
// the [Patience].
const FactorVariable = "TEST_PATIENCE"

const (
	// base is for a machine of two slow processors that two packages of tests keep busy: a sandbox
	// may need more than two minutes there, a pod of a cluster more than three.
	base = 5 * time.Minute

	// The pause between two looks is a tenth of the time that the wait has taken, from shortestPause
	// to longestPause: a wait takes a tenth longer at most, and a long one loads what it waits for
	// with few looks.
	tenth         = 10
	shortestPause = time.Millisecond
	longestPause  = 250 * time.Millisecond
	// A look that takes long, such as a request, loads what is tested. The pause after it is share
	// times as long, up to costlyPause.
	share       = 3
	costlyPause = 150 * time.Millisecond

	// pipes is how long the output of a command that was killed may stay open in its children.
	pipes = 2 * time.Second
)

// Patience returns how long a test waits for one thing that is expected to happen: five minutes,
// times [FactorVariable]. Only a hang takes so long. It panics on a value of the variable that is
// no factor.
func Patience() time.Duration {
	text := os.Getenv(FactorVariable)
	if text == "" {
		return base
	}
	factor, err := strconv.ParseFloat(text, 64)
	if err != nil || !(factor > 0 && factor <= 100) {
		panic(fmt.Sprintf("%s: must be a number above 0 and at most 100, got %q", FactorVariable, text))
	}
	return time.Duration(factor * float64(base))
}

// Deadline returns when the [Patience] of a wait that begins now ends, for connections and files.
func Deadline() time.Time { return time.Now().Add(Patience()) }

// Context returns the context of a test with the [Patience] as its deadline. It ends with the test.
// In a cleanup, where the context of the test has ended already, it ends after the cleanups.
func Context(t testing.TB) context.Context {
	t.Helper()
	parent := t.Context()
	if parent.Err() != nil {
		parent = context.WithoutCancel(parent)
	}
	ctx, cancel := context.WithTimeout(parent, Patience())
	t.Cleanup(cancel)
	return ctx
}

// Client returns a client whose requests, the bodies of their answers included, take the [Patience]
// at most. It keeps no connections.
func Client() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: Patience()}
}

// Command returns a command that is killed when the [Context] of the test ends. Processes that it
// leaves do not keep the test from going on.
func Command(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	command := exec.CommandContext(Context(t), name, args...)
	command.WaitDelay = pipes
	return command
}

// Until looks again and again until holds returns true. A test that has waited for the [Patience]
// fails, with what it waited for and with the results of state, which are the last that it saw.
func Until(t testing.TB, what string, holds func() bool, state ...func() any) {
	t.Helper()
	limit := Patience()
	if Within(limit, holds) {
		return
	}
	var seen string
	for _, state := range state {
		seen += fmt.Sprintf("; it is %+v", state())
	}
	t.Fatalf("waited %v in vain until %s%s", limit, what, seen)
}

// Succeeds tries again and again until try returns no error. A test that has waited for the
// [Patience] fails, with what it waited for and the last error.
func Succeeds(t testing.TB, what string, try func() error) {
	t.Helper()
	limit := Patience()
	var last error
	if !Within(limit, func() bool { last = try(); return last == nil }) {
		t.Fatalf("waited %v in vain until %s: %v", limit, what, last)
	}
}

// For returns what comes from a channel, the zero value once it is closed. A test that has waited
// for the [Patience] fails, with what it waited for.
func For[T any](t testing.TB, what string, from <-chan T) T {
	t.Helper()
	limit := Patience()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case value := <-from:
		return value
	case <-timer.C:
		t.Fatalf("waited %v in vain for %s", limit, what)
		panic("unreachable")
	}
}

// Within reports whether holds returns true within the limit. It is for a goroutine that may not
// end the test, for a program that is no test, and for a condition that need not hold; else see
// [Until]. The last look begins after the limit, so that a machine that stood still fails nothing.
func Within(limit time.Duration, holds func() bool) bool {
	start := time.Now()
	deadline := start.Add(limit)
	for {
		began := time.Now()
		if holds() {
			return true
		}
		if began.After(deadline) {
			return false
		}
		time.Sleep(max(shortestPause, min(time.Since(start)/tenth, longestPause), min(share*time.Since(began), costlyPause)))
	}
}

package wait_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sandbox.internal/test/wait"
)

const patience = 5 * time.Minute

// failing is a test that keeps what it fails with.
type failing struct {
	testing.TB
	said string
}

// Fatalf ends what the test runs, as that of testing.T does.
func (f *failing) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	panic(f)
}

// failureOf returns what run fails with, and how long it took.
func failureOf(t *testing.T, run func(t testing.TB)) (said string, took time.Duration) {
	t.Helper()
	began, f := time.Now(), &failing{TB: t}
	defer func() {
		if recovered := recover(); recovered != nil && recovered != any(f) {
			panic(recovered)
		}
		said, took = f.said, time.Since(began)
	}()
	run(f)
	return
}

// TestInVain: each wait ends with the patience, and says what it was for and what was there last.
func TestInVain(t *testing.T) {
	waits := map[string]struct {
		wait func(t testing.TB)
		want string
	}{
		"until": {func(t testing.TB) {
			looks := 0
			wait.Until(t, "it is done", func() bool { looks++; return false }, func() any { return min(looks, 7) })
		}, "waited 5m0s in vain until it is done; it is 7"},
		"until without a state": {func(t testing.TB) {
			wait.Until(t, "it is done", func() bool { return false })
		}, "waited 5m0s in vain until it is done"},
		"succeeds": {func(t testing.TB) {
			wait.Succeeds(t, "it works", func() error { return errors.New("broken") })
		}, "waited 5m0s in vain until it works: broken"},
		"for": {func(t testing.TB) { wait.For(t, "the end", make(chan int)) }, "waited 5m0s in vain for the end"},
	}
	for name, test := range waits {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				said, took := failureOf(t, test.wait)
				if said != test.want {
					t.Errorf("the failure says %q, want %q", said, test.want)
				}
				if took < patience || took > patience+time.Second {
					t.Errorf("the wait took %v, want %v", took, patience)
				}
			})
		})
	}
}

// TestHappens: what happens within the patience fails no test.
func TestHappens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		wait.Until(t, "a minute has passed", func() bool { return time.Since(began) >= time.Minute })
		wait.Succeeds(t, "two minutes have passed", func() error {
			if time.Since(began) < 2*time.Minute {
				return errors.New("not yet")
			}
			return nil
		})
		if took := time.Since(began); took > 2*time.Minute+time.Second {
			t.Errorf("the waits took %v, want 2m0s", took)
		}
		values := make(chan int)
		go func() { time.Sleep(time.Minute); values <- 5; close(values) }()
		if got := wait.For(t, "a value", values); got != 5 {
			t.Errorf("For returns %d, want 5", got)
		}
		if got := wait.For(t, "the end of the values", values); got != 0 {
			t.Errorf("a closed channel returns %d", got)
		}
	})
}

// TestLastLook: a machine that stands still for longer than the patience fails no test whose
// condition holds when it goes on.
func TestLastLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		wait.Until(t, "there is a second look", func() bool {
			looks++
			time.Sleep(time.Hour)
			return looks == 2
		})
	})
}

// TestWithin: a condition that does not hold takes the limit, and the pauses between looks that
// take long are longer.
func TestWithin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for look, most := range map[time.Duration]int{0: 130, 30 * time.Millisecond: 80, time.Second: 10} {
			looks, began := 0, time.Now()
			if wait.Within(10*time.Second, func() bool { looks++; time.Sleep(look); return false }) {
				t.Error("a condition that never holds does")
			}
			if looks < most/2 || looks > most {
				t.Errorf("%d looks of %v, want %d at most", looks, look, most)
			}
			if took := time.Since(began); took < 10*time.Second || took > 10*time.Second+2*look+time.Second {
				t.Errorf("a wait of 10s took %v", took)
			}
		}
	})
}

// TestFactor: the environment stretches every wait, and only a number does.
func TestFactor(t *testing.T) {
	t.Setenv(wait.FactorVariable, "2.5")
	if got := wait.Patience(); got != 12*time.Minute+30*time.Second {
		t.Errorf("the patience is %v, want 12m30s", got)
	}
	for _, value := range []string{"0", "-1", "NaN", "+Inf", "101", "2m"} {
		t.Setenv(wait.FactorVariable, value)
		func() {
			defer func() {
				if said := fmt.Sprint(recover()); !strings.Contains(said, wait.FactorVariable) || !strings.Contains(said, value) {
					t.Errorf("with %q it says %q", value, said)
				}
			}()
			wait.Patience()
		}()
	}
}

// TestBounds: requests and commands that do not end by themselves are ended.
func TestBounds(t *testing.T) {
	t.Setenv(wait.FactorVariable, "0.001")
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer server.Close()
	if response, err := wait.Client().Get(server.URL); err == nil {
		_ = response.Body.Close()
		t.Error("a request that is not answered has no error")
	}
	command := wait.Command(t, "sh", "-c", "sleep 1000 & exec sleep 1000")
	command.Stdout = new(strings.Builder) // which the other process keeps open
	if err := command.Run(); err == nil {
		t.Error("a command that does not end has no error")
	}
	if err := context.Cause(wait.Context(t)); err != nil {
		t.Errorf("a context is over at once: %v", err)
	}
}

// TestInCleanup: a cleanup can run a command although the context of its test has ended.
func TestInCleanup(t *testing.T) {
	t.Run("test", func(t *testing.T) {
		t.Cleanup(func() {
			if t.Context().Err() == nil {
				t.Error("the context of a test has not ended in a cleanup")
			}
			if err := wait.Command(t, "true").Run(); err != nil {
				t.Error(err)
			}
		})
	})
}

package cells_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience bounds every wait for something that is expected to happen. The first Go cell of a sandbox takes a while.
const patience = 180 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually polls until what it waits for is true.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for end := time.Now().Add(patience); !done(); <-poll.C {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

package sandbox_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	sandbox "sandbox.internal/clients/go"
)

// patience bounds every wait for something that is expected to happen.
const patience = 2 * time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// dial returns a client of a service that the test scripts.
func dial(t *testing.T, options sandbox.Options) *sandbox.Client {
	t.Helper()
	options.Key = "key"
	client, err := sandbox.New(&options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// limited is the test's context with an end.
func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

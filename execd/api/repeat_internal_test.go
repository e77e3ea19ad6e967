package api

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/test/wait"
)

// TestARepetitionTakesOver: the client of the first request has left while it was made.
func TestARepetitionTakesOver(t *testing.T) {
	r, key := newRepeats(), "k"
	ctx, leave := context.WithCancel(t.Context())
	begun := make(chan struct{})
	first := make(chan error, 1)
	go func() {
		_, err := r.once(ctx, "op", repeat{key: &key}, func() (string, error) {
			close(begun)
			<-ctx.Done()
			return "", context.Cause(ctx)
		})
		first <- err
	}()
	wait.For(t, "the begin of the first request", begun)
	second := make(chan string, 1)
	go func() {
		id, err := r.once(t.Context(), "op", repeat{key: &key}, func() (string, error) { return "second", nil })
		if err != nil {
			t.Error(err)
		}
		second <- id
	}()
	leave()
	if err := wait.For(t, "the end of the first request", first); !errors.Is(err, context.Canceled) {
		t.Errorf("the first request: %v", err)
	}
	if id := wait.For(t, "the end of the second request", second); id != "second" {
		t.Errorf("the repetition got %q", id)
	}
}

// TestAgeOfARepetition: of a key that is not known, only a request that was first sent to this
// execd is done.
func TestAgeOfARepetition(t *testing.T) {
	const ran = int64(time.Hour / time.Millisecond)
	r := newRepeats()
	r.since = time.Now().Add(-time.Hour)
	create := func() (string, error) { return "made", nil }
	for age, refused := range map[int64]bool{0: false, ran - 1000: false, ran - 1: true, ran + 1000: true, 24 * ran: true} {
		key := strconv.FormatInt(age, 10)
		var problem *serve.Problem
		_, err := r.once(t.Context(), "op", repeat{&key, &age}, create)
		if errors.As(err, &problem) != refused || refused && problem.Code != "CONFLICT" {
			t.Errorf("%d ms: %v", age, err)
		}
		// Once it is known, no age is too great; a refusal makes no key known.
		oldest := 24 * ran
		if _, err := r.once(t.Context(), "op", repeat{&key, &oldest}, create); (err != nil) != refused {
			t.Errorf("again, after %d ms: %v", age, err)
		}
	}
}

func TestKeysAreBounded(t *testing.T) {
	r := newRepeats()
	calls := 0
	create := func() (string, error) { calls++; return strconv.Itoa(calls), nil }
	for i := range maxKeys + 10 {
		key := strconv.Itoa(i)
		if _, err := r.once(t.Context(), "op", repeat{key: &key}, create); err != nil {
			t.Fatal(err)
		}
	}
	if len(r.byKey) != maxKeys || len(r.order) != maxKeys {
		t.Errorf("%d and %d keys are kept", len(r.byKey), len(r.order))
	}
	newest, oldest := strconv.Itoa(maxKeys+9), "0"
	if id, _ := r.once(t.Context(), "op", repeat{key: &newest}, create); id != strconv.Itoa(maxKeys+10) {
		t.Errorf("the newest key has %s", id)
	}
	if id, _ := r.once(t.Context(), "op", repeat{key: &oldest}, create); id != strconv.Itoa(maxKeys+11) {
		t.Errorf("the oldest key has %s", id)
	}
	var problem *serve.Problem
	if _, err := r.once(t.Context(), "other", repeat{key: &newest}, create); !errors.As(err, &problem) || problem.Code != "CONFLICT" {
		t.Errorf("another operation: %v", err)
	}
}

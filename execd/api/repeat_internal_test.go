package api

import (
	"context"
	"errors"
	"strconv"
	"testing"

	"sandbox.internal/openapi/serve"
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
	<-begun
	second := make(chan string, 1)
	go func() {
		id, err := r.once(t.Context(), "op", repeat{key: &key}, func() (string, error) { return "second", nil })
		if err != nil {
			t.Error(err)
		}
		second <- id
	}()
	leave()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("the first request: %v", err)
	}
	if id := <-second; id != "second" {
		t.Errorf("the repetition got %q", id)
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

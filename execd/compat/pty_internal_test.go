package compat

import (
	"context"
	"errors"
	"testing"
)

// TestTakenOverBeforeTheHandshake: a client whose place another one takes before its own handshake
// has ended does not get it back, and leaves nothing behind.
func TestTakenOverBeforeTheHandshake(t *testing.T) {
	client := func() (*holder, context.Context) {
		ctx, leave := context.WithCancelCause(t.Context())
		return &holder{leave: leave, gone: make(chan struct{})}, ctx
	}
	p := &pty{}
	first, firstLeft := client()
	second, secondLeft := client()
	if !p.connect(t.Context(), first) {
		t.Fatal("the first client is not connected")
	}
	p.takeOver(second)
	p.takeOver(first) // the handshake has ended
	if p.holder != second || !errors.Is(context.Cause(firstLeft), errTakenOver) || secondLeft.Err() != nil {
		t.Fatalf("connected: the second %t; the first leaves because of %v, the second of %v", p.holder == second, context.Cause(firstLeft), context.Cause(secondLeft))
	}
	p.disconnect(first)
	if p.holder != second {
		t.Error("the first client takes the second one away")
	}
	p.disconnect(second)
	p.disconnect(second)
	third, _ := client()
	if !p.connect(t.Context(), third) {
		t.Error("no client is connected, and another one cannot connect")
	}
}

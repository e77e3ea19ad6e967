package view

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"k8s.io/client-go/util/flowcontrol"

	"sandbox.internal/server/lifecycle"
)

// TestExplainUnavailable: an API server that is away is unavailable, also when the client library
// would have asked it again too late.
func TestExplainUnavailable(t *testing.T) {
	limiter := flowcontrol.NewTokenBucketRateLimiter(0.001, 1)
	limiter.Accept()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	tooLate := limiter.Wait(ctx)
	if tooLate == nil || errors.Is(tooLate, context.DeadlineExceeded) {
		t.Fatalf("the limiter says %v", tooLate)
	}
	for _, err := range []error{io.EOF, io.ErrUnexpectedEOF, context.DeadlineExceeded, tooLate} {
		var got *lifecycle.Error
		if !errors.As(Explain(fmt.Errorf("get: %w", err)), &got) || got.Kind != lifecycle.KindUnavailable {
			t.Errorf("%v is explained as %v", err, Explain(err))
		}
	}
	var got *lifecycle.Error
	if errors.As(Explain(errors.New("forbidden")), &got) {
		t.Errorf("another error is explained as %v", got)
	}
}

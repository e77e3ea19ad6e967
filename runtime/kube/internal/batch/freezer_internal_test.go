package batch

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/test/wait"
)

// TestFreezeOfOtherPods: what was found of other pods than those of today is no result.
func TestFreezeOfOtherPods(t *testing.T) {
	done := make(chan struct{}, 1)
	f := newFreezer(new(http.Client), func(string, string) { done <- struct{}{} })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Start(ctx) }()
	defer func() {
		cancel()
		wait.For(t, "the end of the freezer", ended)
	}()
	b := new(v1alpha1.BatchSandbox)
	unreachable := errors.New("unreachable")
	one := []daemon{{0, "pod", "192.0.2.1", func(context.Context) (string, error) {
		return "", unreachable
	}}}
	if result := f.do(b, "freeze", nil); result.tried {
		t.Errorf("begun, it is %+v", result)
	}
	wait.For(t, "the first answer", done)
	if result := f.do(b, "freeze", one); result.tried {
		t.Fatalf("the result for no pods is that for one: %+v", result)
	}
	wait.For(t, "the second answer", done)
	if result := f.do(b, "freeze", one); !result.tried || !errors.Is(result.err, unreachable) {
		t.Errorf("done, it is %+v", result)
	}
}

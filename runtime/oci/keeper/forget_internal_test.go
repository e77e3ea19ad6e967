package keeper

import (
	"testing"
	"time"

	"sandbox.internal/test/wait"
)

// TestForgetWaitsEachTime: a service that was killed while it waited asks again.
func TestForgetWaitsEachTime(t *testing.T) {
	k := &keeper{containers: map[string]*container{}}
	launching := k.newContainer(&Watched{ID: "a"})
	launching.over = true
	k.containers["a"] = launching
	forgotten := make(chan struct{}, 2)
	for range 2 {
		go func() {
			k.forget("a")
			forgotten <- struct{}{}
		}()
	}
	select {
	case <-forgotten:
		t.Error("the container is forgotten while it is being launched")
		return
	case <-time.After(100 * time.Millisecond): // both have been asked, or the test shows less
	}
	close(launching.launched)
	for range 2 {
		wait.For(t, "the end of a call", forgotten)
	}
	if len(k.containers) != 0 {
		t.Error("the container is still known")
	}
}

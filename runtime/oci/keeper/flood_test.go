package keeper_test

import (
	"os"
	"testing"
	"time"

	"sandbox.internal/runtime/oci/keeper"
	"sandbox.internal/test/wait"
)

// TestFloodWaits: what a container prints for ever is moved at the rate of the keeper, and the
// container waits meanwhile.
func TestFloodWaits(t *testing.T) {
	h := newHost(t)
	l := h.container("flood", script("yes 0123456789abcdef"))
	l.LogBytes = 4 << 20
	began := time.Now()
	h.launch(l)
	const burst, rate, beyond = 16 << 20, 1 << 20, 1 << 20
	wait.Until(h.t, "the log has more than the burst", func() bool {
		log, err := os.Open(l.Log)
		if err != nil {
			return false // between two files
		}
		defer log.Close()
		begin, _ := keeper.LogBegin(log)
		info, err := log.Stat()
		return err == nil && begin+info.Size() >= burst+beyond
	})
	// A pipe holds a part of it already when the wait begins, and time goes by before the first
	// byte.
	if took, least := time.Since(began), time.Second*beyond/rate*3/4; took < least {
		t.Errorf("%d bytes were moved in %v, want at least %v", burst+beyond, took, least)
	}
}

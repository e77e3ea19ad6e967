// Package clock waits.
package clock

import (
	"context"
	"time"
)

// Sleep returns true once the time has passed, and false as soon as ctx has ended.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

package app

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
)

const (
	// readyTimeout bounds one question whether the service is ready.
	readyTimeout = 5 * time.Second
	// readyFor is how long an answer holds: it needs no key, and each request costs the engine one.
	readyFor = time.Second
)

// readyz answers whether the service can do what it is asked to: 200, or 503 with what does not
// answer. /health only says that the process serves.
func readyz(ready func(context.Context) error) echo.HandlerFunc {
	var mu sync.Mutex
	var last error
	var until time.Time
	return func(c echo.Context) error {
		mu.Lock()
		defer mu.Unlock()
		if !time.Now().Before(until) {
			// Not the request's context: the answer is for the others, too.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Request().Context()), readyTimeout)
			defer cancel()
			last = ready(ctx)
			until = time.Now().Add(readyFor)
		}
		if last != nil {
			return last
		}
		return c.JSON(http.StatusOK, map[string]string{"status": "ready"})
	}
}

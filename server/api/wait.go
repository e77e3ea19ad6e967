package api

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/lifecycle"
)

const (
	preferHeader = "Prefer"
	// maxWait is the longest wait that is heeded. A client that would wait for longer gets its answer earlier, as RFC 7240 allows.
	maxWait = 60 * time.Second
)

// joinPrefer joins several Prefer headers to the one that they mean (RFC 9110, section 5.3): the contract knows one.
func joinPrefer(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if header := c.Request().Header; len(header.Values(preferHeader)) > 1 {
			header.Set(preferHeader, strings.Join(header.Values(preferHeader), ", "))
		}
		return next(c)
	}
}

// waitOf returns for how long the value of a Prefer header asks to wait, 0 when it does not, or not in a way that is understood.
func waitOf(prefer string) time.Duration {
	for _, preference := range strings.Split(prefer, ",") {
		preference, _, _ = strings.Cut(preference, ";") // its parameters
		name, text, _ := strings.Cut(preference, "=")
		if !strings.EqualFold(strings.TrimSpace(name), "wait") {
			continue
		}
		// Only the first one of a name counts (RFC 7240, section 2).
		seconds, err := strconv.ParseUint(unquote(strings.TrimSpace(text)), 10, 32)
		if err != nil {
			return 0
		}
		return min(time.Duration(seconds)*time.Second, maxWait)
	}
	return 0
}

func unquote(text string) string {
	if len(text) >= 2 && text[0] == '"' && text[len(text)-1] == '"' {
		return text[1 : len(text)-1]
	}
	return text
}

// wait heeds the wait that a client prefers: it returns the sandbox once its state has settled, or as it is when the time is up or
// the service stops, and the preference that it heeded. It returns nothing without such a preference, and when the sandbox is
// forgotten: what the client asked for is done all the same.
func (h *handlers) wait(ctx context.Context, prefer *string, id string) (sandbox lifecycle.Sandbox, applied *string) {
	limit := waitOf(value(prefer))
	if limit == 0 {
		return sandbox, nil
	}
	ctx, cancel := serve.UntilDraining(ctx)
	defer cancel()
	sandbox, err := h.backend.Settle(ctx, id, limit)
	if err != nil {
		return lifecycle.Sandbox{}, nil
	}
	preference := "wait"
	return sandbox, &preference
}

package api

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"sandbox.internal/openapi/serve/listen"
	"sandbox.internal/server/lifecycle"
)

const (
	preferHeader = "Prefer"
	// maxWait is the longest wait. A client that prefers a longer one gets its response earlier, as
	// RFC 7240 allows.
	maxWait = 60 * time.Second
)

// joinPrefer joins several Prefer headers into one (RFC 9110, section 5.3), which is what the
// contract has.
func joinPrefer(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if header := c.Request().Header; len(header.Values(preferHeader)) > 1 {
			header.Set(preferHeader, strings.Join(header.Values(preferHeader), ", "))
		}
		return next(c)
	}
}

// waitOf returns the wait in the value of a Prefer header, 0 when there is none or it is malformed.
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

// wait applies a client's preference to wait: it returns the sandbox once its state is not
// transient, or as it is when the time is up or the service stops, and the preference that it
// applied. It returns nothing without such a preference, and when the sandbox is forgotten: the
// request itself has succeeded.
func (h *handlers) wait(
	ctx context.Context, prefer *string, id string,
) (sandbox lifecycle.Sandbox, applied *string) {
	limit := waitOf(value(prefer))
	if limit == 0 {
		return sandbox, nil
	}
	ctx, cancel := listen.UntilDraining(ctx)
	defer cancel()
	sandbox, err := h.backend.AwaitStable(ctx, id, limit)
	if err != nil {
		return lifecycle.Sandbox{}, nil
	}
	preference := "wait"
	return sandbox, &preference
}

package serve

import (
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"
)

// panicError is a recovered panic on its way to the log.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// recoverPanics turns a panic into an error, so that it is answered and logged like
// one. [http.ErrAbortHandler] passes: it is how a handler gives up a response.
func recoverPanics(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) (err error) {
		defer func() {
			value := recover()
			if value == nil {
				return
			}
			if cause, ok := value.(error); ok && errors.Is(cause, http.ErrAbortHandler) {
				panic(value)
			}
			err = &panicError{value: value, stack: debug.Stack()}
		}()
		return next(c)
	}
}

// headAsGet answers HEAD wherever there is a GET, as HTTP asks for. net/http drops
// the body. Routes that registered HEAD themselves keep it.
func headAsGet(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		allowed, _ := c.Get(echo.ContextKeyHeaderAllow).(string)
		if c.Request().Method != http.MethodHead ||
			!slices.Contains(strings.Split(allowed, ", "), http.MethodGet) {
			return next(c)
		}
		c.Echo().Router().Find(http.MethodGet, echo.GetPath(c.Request()), c)
		return c.Handler()(c)
	}
}

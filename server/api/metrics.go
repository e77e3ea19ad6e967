package api

import (
	"strings"

	"github.com/labstack/echo/v4"
)

// bearer takes a key from "Authorization: Bearer", for scrapers that cannot send a header of their own.
func bearer(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		header := c.Request().Header
		if key, ok := strings.CutPrefix(header.Get(echo.HeaderAuthorization), "Bearer "); ok && header.Get(keyHeader) == "" {
			header.Set(keyHeader, key)
		}
		return next(c)
	}
}

package check

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"strings"

	"github.com/labstack/echo/v4"

	"sandbox.internal/openapi/serve/internal/problem"
)

// JSON decodes exactly one value. Numbers keep their digits.
func JSON(data []byte) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		var syntax *json.SyntaxError
		switch {
		case errors.As(err, &syntax):
			return nil, problem.Invalid("body: is not valid JSON: %v at byte %d", syntax, syntax.Offset)
		case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
			return nil, problem.Invalid("body: is not valid JSON: it ends too early")
		}
		return nil, problem.Invalid("body: is not valid JSON: %v", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, problem.Invalid("body: is not valid JSON: there is more after the first value")
	}
	return value, nil
}

// IsJSON reports whether a Content-Type is JSON, by name or by its +json suffix.
func IsJSON(contentType string) bool {
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && (media == echo.MIMEApplicationJSON || strings.HasSuffix(media, "+json"))
}

package compat

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"sandbox.internal/execd/files"
	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/respond"
)

// maxBody is how many bytes of JSON a request may have, as for the operations of the contract.
const maxBody = 16 << 20

// readJSON decodes the body of a request.
func readJSON(c echo.Context, into any) error {
	decoder := json.NewDecoder(http.MaxBytesReader(c.Response().Writer, c.Request().Body, maxBody))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(into)
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) || errors.Is(err, io.EOF) {
		return err
	} else if err != nil {
		return serve.Invalid("body: %v", err)
	}
	return nil
}

// replace replaces text in files, and answers with how often.
func (h *handler) replace(c echo.Context) error {
	var body map[string]struct {
		Old string `json:"old"`
		New string `json:"new"`
	}
	if err := readJSON(c, &body); errors.Is(err, io.EOF) {
		return serve.Invalid("body: is required")
	} else if err != nil {
		return err
	}
	wanted := make(map[string]files.Replacement, len(body))
	for path, replacement := range body {
		wanted[path] = files.Replacement{Old: replacement.Old, New: replacement.New}
	}
	counts, err := h.Files.ReplaceAndCount(wanted)
	if err != nil {
		return err
	}
	answer := make(map[string]map[string]int, len(counts))
	for path, count := range counts {
		answer[path] = map[string]int{"replacedCount": count}
	}
	return c.JSON(http.StatusOK, answer)
}

// lines answers with some lines of a file: limit of them, all by default, from the line offset, 1
// by default.
func (h *handler) lines(c echo.Context) error {
	if c.Request().Header.Get("Range") != "" {
		return serve.Invalid("header Range: cannot be combined with offset and limit")
	}
	offset, err := positive(c, "offset", 1)
	if err != nil {
		return err
	}
	limit, err := positive(c, "limit", -1)
	if err != nil {
		return err
	}
	path := c.QueryParam("path")
	if path == "" {
		return serve.Invalid("query parameter path: is required")
	}
	file, err := h.Files.Open(path)
	if err != nil {
		return err
	}
	defer file.Close() // only read from
	header := c.Response().Header()
	header.Set("Content-Type", "text/plain; charset=utf-8")
	header.Set("X-Content-Type-Options", "nosniff")
	c.Response().WriteHeader(http.StatusOK)
	out := bufio.NewWriterSize(respond.BoundedWriter(c.Response(), 0), 64<<10)
	if err := copyLines(out, bufio.NewReaderSize(file.Content, 64<<10), offset, limit); err != nil {
		return err
	}
	return out.Flush()
}

// positive returns a query parameter that is a whole number above 0, or what stands for none.
func positive(c echo.Context, name string, none int64) (int64, error) {
	given := c.QueryParam(name)
	if given == "" {
		return none, nil
	}
	number, err := strconv.ParseInt(given, 10, 64)
	if err != nil || number < 1 {
		return 0, serve.Invalid("query parameter %s: must be a whole number of at least 1", name)
	}
	return number, nil
}

// copyLines copies limit lines, all when it is negative, from the line offset on, which is 1 for
// the first. The newline at the end of the last one is left out.
func copyLines(out io.Writer, in *bufio.Reader, offset, limit int64) error {
	newline := false // is to be written before the next part
	for at := int64(1); limit < 0 || at-offset < limit; {
		part, err := in.ReadSlice('\n')
		if at >= offset && len(part) > 0 {
			if newline {
				if _, err := out.Write([]byte{'\n'}); err != nil {
					return err
				}
			}
			var text []byte
			text, newline = bytes.CutSuffix(part, []byte{'\n'})
			if _, err := out.Write(text); err != nil {
				return err
			}
		}
		switch {
		case err == nil:
			at++
		case errors.Is(err, io.EOF):
			return nil
		case !errors.Is(err, bufio.ErrBufferFull): // a part of a long line is no failure
			return err
		}
	}
	return nil
}

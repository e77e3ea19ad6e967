package compat

import (
	"net/http"
	"net/url"
	"strconv"
)

const (
	cursorParameter = "cursor"
	cursorHeader    = "EXECD-COMMANDS-TAIL-CURSOR"
)

// ourCursor returns the query with the cursor of a command's log as the contract has it. For these
// clients a cursor is how many lines they have, so that 0 asks for everything; for the contract it
// is the index of the last one. It reports false for a cursor that the contract refuses.
func ourCursor(query url.Values) (url.Values, bool) {
	if !query.Has(cursorParameter) {
		return query, true
	}
	lines, err := strconv.ParseInt(query.Get(cursorParameter), 10, 64)
	if err != nil || lines < 0 {
		return query, false
	}
	query.Del(cursorParameter)
	if lines > 0 {
		query.Set(cursorParameter, strconv.FormatInt(lines-1, 10))
	}
	return query, true
}

// cursorWriter writes the cursor of an answer as these clients have it.
type cursorWriter struct {
	http.ResponseWriter
	written bool
}

// Unwrap gives a [http.ResponseController] access to the wrapped writer.
func (w *cursorWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *cursorWriter) WriteHeader(status int) {
	if last, err := strconv.ParseInt(w.Header().Get(cursorHeader), 10, 64); err == nil && !w.written {
		w.Header().Set(cursorHeader, strconv.FormatInt(last+1, 10))
		w.written = true
	}
	w.ResponseWriter.WriteHeader(status)
}

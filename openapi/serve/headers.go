package serve

import (
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"sandbox.internal/openapi/serve/internal/problem"
)

// Accepts reports whether a request's Accept header names the media type.
func Accepts(r *http.Request, media string) bool { return slices.Contains(Accepted(r), media) }

// Accepted returns the media types of a request's Accept header in their order, without
// their parameters.
func Accepted(r *http.Request) []string {
	var types []string
	for entry := range strings.SplitSeq(strings.Join(r.Header.Values("Accept"), ","), ",") {
		if media, _, err := mime.ParseMediaType(entry); err == nil {
			types = append(types, media)
		}
	}
	return types
}

// LastEventID returns the id of the event in the header Last-Event-ID, 0 without the
// header. The error is [Invalid].
func LastEventID(header *string) (int64, error) {
	if header == nil || *header == "" {
		return 0, nil
	}
	id, err := strconv.ParseInt(*header, 10, 64)
	if err != nil || id < 0 {
		return 0, problem.Invalid("header Last-Event-ID: %q is not the id of an event", *header)
	}
	return id, nil
}

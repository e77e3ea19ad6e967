package reach

import (
	"net/http"
	"slices"
	"strings"
)

// The headers that carry an API key of the service: the one of the lifecycle document, and those
// that people use anyway.
const (
	KeyHeader     = "SERVICE-API-KEY"
	bearerHeader  = "Authorization"
	commonHeader  = "X-Api-Key"
	bearerScheme  = "Bearer"
	commonDisplay = "X-API-Key"
)

// PresentedKey is what a request presents as an API key, and the header that it stands in.
type PresentedKey struct{ Header, Key string }

// PresentedKeys returns what a request presents as an API key. SERVICE-API-KEY is for nothing else,
// so where it is there it counts alone; else there is at most one of each other header.
func PresentedKeys(header http.Header) []PresentedKey {
	if key := header.Get(KeyHeader); key != "" {
		return []PresentedKey{{KeyHeader, key}}
	}
	var found []PresentedKey
	if key := bearer(header.Get(bearerHeader)); key != "" {
		found = append(found, PresentedKey{bearerHeader, key})
	}
	if key := header.Get(commonHeader); key != "" {
		found = append(found, PresentedKey{commonDisplay, key})
	}
	return found
}

// WithoutKeys returns the request without the API keys that it carries, for the program in a
// sandbox. Headers that are that program's own stay: an Authorization or X-API-Key that isKey does
// not accept. The request given is not changed.
func WithoutKeys(r *http.Request, isKey func(string) bool) *http.Request {
	holdsKey := map[string]func(string) bool{
		bearerHeader: func(value string) bool { key := bearer(value); return key != "" && isKey(key) },
		commonHeader: isKey,
	}
	header := r.Header
	for name, holds := range holdsKey {
		if !slices.ContainsFunc(header[name], holds) {
			continue
		}
		kept := slices.DeleteFunc(slices.Clone(header[name]), holds)
		header = header.Clone()
		set(header, name, kept)
	}
	if _, ok := header[http.CanonicalHeaderKey(KeyHeader)]; ok {
		header = header.Clone()
		header.Del(KeyHeader)
	}
	clean := *r
	clean.Header = header
	return &clean
}

// bearer returns the token of "Bearer TOKEN", empty for every other value.
func bearer(value string) string {
	scheme, token, _ := strings.Cut(strings.TrimSpace(value), " ")
	if !strings.EqualFold(scheme, bearerScheme) {
		return ""
	}
	return strings.TrimSpace(token)
}

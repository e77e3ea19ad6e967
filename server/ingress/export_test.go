package ingress

import "net/http"

// ParseRoutes reads static routes.
func ParseRoutes(text []byte) error {
	_, err := parseRoutes(text)
	return err
}

// FromOwnPage reports whether a cookie of the request counts.
func FromOwnPage(r *http.Request) bool { return fromOwnPage(r) }

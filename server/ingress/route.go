// Package ingress gives clients one address for every port of every sandbox (lifecycle document,
// "Networking rules", 5). Routes follow the events of the lifecycle service, a [Source] or a file;
// a request causes at most one look-up per sandbox, of its endpoint.
package ingress

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Mode is how requests name their sandbox and port.
type Mode string

// The route modes of the document.
const (
	// ModeWildcard: the host is <sandbox_id>-<port>.<domain>.
	ModeWildcard Mode = "wildcard"
	// ModeURI: the path begins with /<sandbox_id>/<port>.
	ModeURI Mode = "uri"
	// ModeHeader: the header Service-Ingress-To is <sandbox_id>-<port>.
	ModeHeader Mode = "header"
)

// Destination is the port of a sandbox that a request is for.
type Destination struct {
	Sandbox string
	Port    int
	// Prefix is the part of the path that named it; empty except in the mode uri.
	Prefix string
}

// errNoRoute is a request that names no sandbox at all, as opposed to one that names it in a wrong
// way.
var errNoRoute = errors.New("names no sandbox")

// ParseHost reads a Host header in the mode wildcard. Letter case, a port and a last dot do not
// matter.
func ParseHost(host, domain string) (Destination, error) {
	if bare, _, err := net.SplitHostPort(host); err == nil {
		host = bare
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	name, ok := strings.CutSuffix(host, "."+domain)
	if !ok || strings.Contains(name, ".") {
		return Destination{}, fmt.Errorf("host %.100q: %w: it must be <sandbox_id>-<port>.%s", host,
			errNoRoute, domain)
	}
	destination, err := parseName(name)
	if err != nil {
		return Destination{}, fmt.Errorf("host: %w", err)
	}
	return destination, nil
}

// ParsePath reads a path in the mode uri, as the client wrote it: /<sandbox_id>/<port>, and a slash
// and more if there is more.
func ParsePath(path string) (Destination, error) {
	rest, ok := strings.CutPrefix(path, "/")
	id, rest, second := strings.Cut(rest, "/")
	if !ok || !second || !validID(id) {
		return Destination{}, fmt.Errorf("path: %w: it must begin with /<sandbox_id>/<port>",
			errNoRoute)
	}
	segment, _, _ := strings.Cut(rest, "/")
	port, err := parsePort(segment)
	if err != nil {
		return Destination{}, fmt.Errorf("path: %w", err)
	}
	return Destination{Sandbox: id, Port: port, Prefix: "/" + id + "/" + segment}, nil
}

// ParseHeader reads the header Service-Ingress-To in the mode header.
func ParseHeader(value string) (Destination, error) {
	destination, err := parseName(value)
	if err != nil {
		return Destination{}, fmt.Errorf("header Service-Ingress-To: %w", err)
	}
	return destination, nil
}

// parseName reads <sandbox_id>-<port>. An id may hold hyphens, a port cannot.
func parseName(name string) (Destination, error) {
	last := strings.LastIndexByte(name, '-')
	if last < 0 || !validID(name[:last]) {
		return Destination{}, fmt.Errorf("must be <sandbox_id>-<port> (got %.100q)", name)
	}
	port, err := parsePort(name[last+1:])
	if err != nil {
		return Destination{}, err
	}
	return Destination{Sandbox: name[:last], Port: port}, nil
}

// validID reports whether id is a DNS label, as ids of sandboxes are.
func validID(id string) bool {
	if id == "" || len(id) > 63 || id[0] == '-' || id[len(id)-1] == '-' {
		return false
	}
	for _, c := range []byte(id) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// parsePort reads a port. A second way to write the same port is refused, because links are made
// for the first.
func parsePort(text string) (int, error) {
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 || text[0] == '0' {
		return 0, fmt.Errorf(
			"the port must be a decimal number from 1 to 65535 without leading zeros, not %.40q",
			text)
	}
	return int(port), nil
}

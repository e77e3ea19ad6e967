package api

import (
	"net"
	"net/http"
	"strconv"
	"strings"

	gen "sandbox.internal/gen/lifecycle"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/reach"
)

// signedEndpoint returns an endpoint that needs no key until a given time.
func (h *handlers) signedEndpoint(
	r *http.Request, sandbox lifecycle.Sandbox, port int, location lifecycle.Location,
	expires string,
) (gen.Endpoint, error) {
	until, err := lifecycle.SignedUntil(expires, h.clock(), sandbox.ExpiresAt)
	if err != nil {
		return gen.Endpoint{}, err
	}
	if !h.signing.Present() {
		return gen.Endpoint{}, &lifecycle.Error{
			Kind:    lifecycle.KindUnavailable,
			Message: "query parameter expires: the service has no signing key",
		}
	}
	signature := h.signing.Sign(sandbox.ID, location.Token, port, until)
	answer, ok := h.ingress.endpoint(r, sandbox.ID, port)
	switch {
	case ok:
	case location.Endpoint.Port == 0: // the service itself, on a path of the document
		answer = at(schemeOf(r), r.Host+location.Endpoint.Path)
	default:
		answer = at(schemeOf(r), r.Host+"/v1/sandboxes/"+sandbox.ID+"/proxy/"+strconv.Itoa(port))
	}
	query := "/?" + reach.SignatureName + "=" + signature
	answer.Endpoint, answer.URL = answer.Endpoint+query, answer.URL+query
	answer.Signature, answer.ExpiresAt = &signature, &until
	return answer, nil
}

// Ingress is the address at which clients reach sandboxes through an ingress (lifecycle document,
// "Networking rules", 5).
type Ingress struct {
	// Mode is wildcard, uri or header; empty means that there is no ingress.
	Mode string
	// Address is the host of the ingress with an optional port; in the mode wildcard it begins with
	// "*.".
	Address string
}

// endpoint returns the endpoint of a port on the ingress, false when there is no ingress.
func (i Ingress) endpoint(r *http.Request, id string, port int) (gen.Endpoint, bool) {
	name := id + "-" + strconv.Itoa(port)
	answer := gen.Endpoint{}
	switch i.Mode {
	case "wildcard":
		answer = at(schemeOf(r), name+"."+strings.TrimPrefix(i.Address, "*."))
	case "uri":
		answer = at(schemeOf(r), i.Address+"/"+id+"/"+strconv.Itoa(port))
	case "header":
		answer = at(schemeOf(r), i.Address)
		answer.Headers[reach.RouteHeader] = name
	default:
		return answer, false
	}
	return answer, true
}

func at(scheme, address string) gen.Endpoint {
	return gen.Endpoint{
		Endpoint: address,
		URL:      scheme + "://" + address,
		Headers:  map[string]string{},
	}
}

// schemeOf returns the scheme of the client's request, which a reverse proxy before the service
// reports. An ingress is taken to be behind the same kind of proxy.
func schemeOf(r *http.Request) string {
	if strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https") {
		return "https"
	}
	return "http"
}

// addressOf returns the host and port of an endpoint, for a client that reached the service at the
// given Host header.
func addressOf(endpoint lifecycle.Endpoint, header string) string {
	if endpoint.Port == 0 {
		return header
	}
	host := endpoint.Host
	if host == "" {
		host = hostOf(header)
	}
	return net.JoinHostPort(host, strconv.Itoa(endpoint.Port))
}

// hostOf returns the host of a Host header, without the port and without the brackets of an IPv6
// address.
func hostOf(header string) string {
	if host, _, err := net.SplitHostPort(header); err == nil {
		return host
	}
	if len(header) > 1 && header[0] == '[' && header[len(header)-1] == ']' {
		return header[1 : len(header)-1]
	}
	return header
}

package compat

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/reach"
)

// secureHeader carries the secret of a sandbox that was made with secureAccess. Here it is the
// sandbox's token, which execd takes in this header too.
const secureHeader = "OpenSandbox-Secure-Access"

// toSecured notes that the ports of the sandbox need its token. They need it anyway, but for those
// on the machine's own addresses.
func (e *Edge) toSecured(fields object) (code, refusal string) {
	switch {
	case is(fields["secureAccess"], "false"), is(fields["secureAccess"], "null"):
		delete(fields, "secureAccess")
	case !is(fields["secureAccess"], "true"): // it is absent, or the service refuses it
	case e.HostNetwork:
		return codeInvalidParameter, `secureAccess: the sandboxes of this service are on the machine's network (sandbox.network_mode = "host"), ` +
			"where their ports can be reached without a token"
	default:
		delete(fields, "secureAccess")
		addMetadata(fields, lifecycle.SecureAccessKey, "true")
	}
	return "", ""
}

// isOpen reports whether the service admits requests without a key.
func (x *exchange) isOpen() bool {
	stranger := *x.r
	stranger.Header = x.r.Header.Clone()
	for _, name := range []string{reach.KeyHeader, "Authorization", "X-API-Key", "Cookie"} {
		stranger.Header.Del(name)
	}
	return x.edge.Admits(&stranger)
}

// secures reports whether the sandbox was made with secureAccess. A sandbox that is not there was
// not; one that cannot be looked up counts as such a one.
func (e *Edge) secures(ctx context.Context, id string) bool {
	sandbox, err := e.Backend.Get(ctx, id)
	var known *lifecycle.Error
	if errors.As(err, &known) && known.Kind == lifecycle.KindNotFound {
		return false
	}
	return err != nil || sandbox.Metadata[lifecycle.SecureAccessKey] == "true"
}

// reachedSandbox returns the sandbox that a request for a port is forwarded to.
func reachedSandbox(path string) (id string, ok bool) {
	rest, ok := strings.CutPrefix(path, sandboxesPath+"/")
	id, rest, found := strings.Cut(rest, "/")
	return id, ok && found && strings.HasPrefix(rest, "proxy/")
}

// mayReach reports whether a request for a port through the service carries the sandbox's token,
// where it needs one beside the key. When it reports false, the request is answered.
func (x *exchange) mayReach(id string) bool {
	if !x.edge.secures(x.r.Context(), id) {
		return true
	}
	location, unknown := x.edge.Backend.Locate(x.r.Context(), id, lifecycle.DaemonPort)
	sent := x.r.Header.Get(secureHeader)
	if sent == "" {
		sent = x.r.Header.Get(lifecycle.TokenHeader)
	}
	x.r.Header.Del(secureHeader)
	if unknown == nil && location.Token != "" && reach.Equal(sent, location.Token) {
		return true
	}
	// The sandbox of another key is not there for the client.
	found := x.ask(http.MethodGet, sandboxesPath+"/"+id, nil, nil)
	if !found.OK() {
		found.send(x.w)
		return false
	}
	if unknown != nil { // the service has words for why, unless that is over by now
		port := strconv.Itoa(lifecycle.DaemonPort)
		if found := x.ask(http.MethodGet, sandboxesPath+"/"+id+"/endpoints/"+port, nil, nil); !found.OK() {
			found.send(x.w)
			return false
		}
		x.refuseSecured(http.StatusServiceUnavailable, "SERVICE_UNAVAILABLE", "the sandbox cannot be reached, so that its secret is not known: try again once it is Running")
		return false
	}
	message := "header " + secureHeader + ": is required; the endpoint of the port has it"
	if sent != "" {
		message = "header " + secureHeader + ": is not the secret of this sandbox"
	}
	x.w.Header().Set("WWW-Authenticate", fmt.Sprintf("ApiKey header=%q", secureHeader))
	x.refuseSecured(http.StatusUnauthorized, "UNAUTHORIZED", message)
	return false
}

// refuseSecured answers a request for a port that is not forwarded.
func (x *exchange) refuseSecured(status int, code, message string) {
	header := x.w.Header()
	header.Set(requestIDHeader, x.id)
	header.Set("Content-Type", "application/json")
	x.w.WriteHeader(status)
	_, _ = x.w.Write(encode(problem{Code: code, Message: message})) // a client that is gone by now is no news
}

package e2b

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/reach"
)

// refusal is the response to a request that is not admitted.
type refusal struct {
	status        int
	code, message string // code is one of Connect
	retryAfter    int    // seconds; 0 for none
}

func unauthenticated(message string) *refusal {
	return &refusal{status: http.StatusUnauthorized, code: "unauthenticated", message: message}
}

// send responds with the refusal.
func (f *refusal) send(w http.ResponseWriter) {
	if f.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(f.retryAfter))
	}
	sendJSON(w, f.status, map[string]any{"code": f.code, "message": f.message})
}

// attempt runs a check of a token or a signature. A refusal counts as a wrong key does, and an
// address with too many of them is refused before the check.
func (e *Edge) attempt(r *http.Request, check func() *refusal) *refusal {
	var refused *refusal
	err := e.Attempt(r, func() error {
		if refused = check(); refused != nil && refused.status == http.StatusUnauthorized {
			return serve.Unauthorized("%s", refused.message)
		}
		return nil
	})
	var problem *serve.Problem
	if refused == nil && errors.As(err, &problem) {
		refused = &refusal{problem.Status, "resource_exhausted", problem.Message, int(math.Ceil(problem.RetryAfter.Seconds()))}
	}
	return refused
}

// healthPath is the path of execd's health check, which needs no token.
const healthPath = "/health"

// codePath matches the paths of the code interpreter that clients send no token to. The sandbox's
// id, which cannot be guessed, admits them; in a private sandbox its traffic token.
var codePath = regexp.MustCompile(`^/contexts(/[0-9A-Za-z-]+(/restart)?)?$`)

// tokenFor returns the token that a request is forwarded with, or why the request is refused.
// Without the sandbox's token a client may do what needs none, and nothing else.
func tokenFor(r *http.Request, port int, target reachable, now time.Time) (string, *refusal) {
	path := r.URL.Path
	if port == codePort && path != healthPath && path != "/execute" && !codePath.MatchString(path) {
		return "", &refusal{
			status: http.StatusNotFound, code: "not_found", message: fmt.Sprintf("path %.128q: the code interpreter has no such operation", path),
		}
	}
	if sent := r.Header.Get(tokenHeader); sent != "" {
		if !reach.Equal(sent, target.token) { // the service would refuse it, but a paused sandbox would be resumed
			return "", unauthenticated("header X-Access-Token: is not this sandbox's token")
		}
		return target.token, nil
	}
	switch {
	case path == healthPath:
		return target.token, nil
	case port == codePort && path != "/execute":
		if target.private && !reach.Equal(r.Header.Get(trafficHeader), trafficToken(target.token)) {
			return "", &refusal{status: http.StatusForbidden, code: "permission_denied", message: needsTraffic}
		}
		return target.token, nil
	case port == daemonPort && path == "/files" && r.URL.Query().Get(signatureName) != "":
		if !isSigned(r, target.token, now) {
			return "", unauthenticated("signature: is not one for this file, user and operation, or has expired")
		}
		return target.token, nil
	}
	return "", unauthenticated("header X-Access-Token: is required")
}

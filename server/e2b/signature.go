package e2b

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"

	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/reach"
)

// signatureLength is the length of a signature: v1_ and a SHA-256 in base64.
const signatureLength = 3 + 43

func isSignature(text string) bool {
	return len(text) == signatureLength && strings.HasPrefix(text, "v1_")
}

// isSigned reports whether the signature of a request for a file was made with a sandbox's token
// and has not expired.
func isSigned(r *http.Request, token string, now time.Time) bool {
	query := r.URL.Query()
	operation := "read"
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		operation = "write"
	}
	signed := query.Get("path") + ":" + operation + ":" + query.Get("username") + ":" + token
	if until := query.Get(expirationName); until != "" {
		seconds, err := strconv.ParseInt(until, 10, 64)
		if err != nil || now.Unix() >= seconds {
			return false
		}
		signed += ":" + until
	}
	sum := sha256.Sum256([]byte(signed))
	return reach.Equal(query.Get(signatureName), "v1_"+base64.RawStdEncoding.EncodeToString(sum[:]))
}

// search returns the sandbox that a signature is for: the URL of a file names none when clients
// reach all sandboxes by one URL.
func (e *Edge) search(r *http.Request) (string, bool) {
	select {
	case e.searches <- struct{}{}:
		defer func() { <-e.searches }()
	case <-r.Context().Done():
		return "", false
	}
	now := e.Clock()
	reached := lifecycle.Filter{States: []lifecycle.State{
		lifecycle.StateRunning, lifecycle.StatePausing, lifecycle.StatePaused, lifecycle.StateResuming,
	}}
	for number := 1; ; number++ {
		listing, err := e.Backend.List(r.Context(), reached, lifecycle.Page{Number: number, Size: lifecycle.MaxPageSize})
		if err != nil {
			e.log(r.Context(), err, "", "cannot list the sandboxes")
			return "", false
		}
		for _, sandbox := range listing.Items {
			if sandbox.Status.State != lifecycle.StateRunning && (e.Sleeper == nil || !sandbox.Wakes()) {
				continue
			}
			location, err := e.Backend.Locate(r.Context(), sandbox.ID, lifecycle.DaemonPort)
			if err == nil && location.Token != "" && isSigned(r, location.Token, now) {
				return sandbox.ID, true
			}
		}
		if number*lifecycle.MaxPageSize >= listing.Total {
			return "", false
		}
	}
}

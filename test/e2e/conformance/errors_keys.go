package conformance

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"
	"testing"

	"sandbox.internal/openapi/serve/servetest"
	"sandbox.internal/test/wait"
)

// Keys of the services that have more than one.
const (
	userKey   = "the-key-of-a-user"
	OtherKey  = "the-key-of-another-user"
	ViewerKey = "the-key-of-a-viewer"
	SlowKey   = "the-key-of-a-viewer-who-may-ask-once-a-second"
)

// Digest returns a key as it is configured.
func Digest(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// readOperations are those of [OperationsOn] that a viewer may ask for.
var readOperations = []string{
	"getSandbox", "getLogs", "streamSandboxEvents", "getActivity", "watchActivity",
}

func testKeys(t *testing.T, s *Service, id string) {
	document, err := LifecycleContract()
	if err != nil {
		t.Fatal(err)
	}
	servetest.EveryOperationNeedsKey(t, document, s.URL, "getHealth")
	operations := append(OperationsOn(id),
		Operation{"createSandbox", "POST", "/v1/sandboxes", "{}"},
		Operation{"listSandboxes", "GET", "/v1/sandboxes", ""},
		Operation{"streamEvents", "GET", "/v1/events", ""},
		Operation{"streamHostLoad", "GET", "/v1/host/load", ""},
		Operation{"getVersion", "GET", "/v1/version", ""})
	for _, o := range operations {
		WantProblem(t, s.As(t, "").Send(t, o.Method, o.Path, o.Body), 401, "UNAUTHORIZED",
			KeyHeader, "required")
		WantProblem(t, s.As(t, "wrong").Send(t, o.Method, o.Path, o.Body), 401, "UNAUTHORIZED",
			KeyHeader, "valid")
	}
}

func testScopes(t *testing.T, s *Service) {
	user, other, viewer := s.As(t, userKey), s.As(t, OtherKey), s.As(t, ViewerKey)
	id := user.Running(t, s.Idle())
	for _, o := range OperationsOn(id) {
		WantProblem(t, other.Send(t, o.Method, o.Path, o.Body), 403, "FORBIDDEN", "other")
		if !slices.Contains(readOperations, o.Name) {
			WantProblem(t, viewer.Send(t, o.Method, o.Path, o.Body), 403, "FORBIDDEN", "viewer")
		}
	}
	body := Encode(t, s.Idle())
	WantProblem(t, viewer.Send(t, http.MethodPost, "/v1/sandboxes", body), 403, "FORBIDDEN",
		"viewer", "create")
	if got := IDs(user.Everything(t)); !slices.Equal(got, []string{id}) {
		t.Errorf("the user gets %q, want only its own %q", got, id)
	}
	if got := other.Everything(t); len(got) != 0 {
		t.Errorf("another user gets %v", got)
	}
	if got := len(viewer.Everything(t)); got != len(s.Everything(t)) || got < 2 {
		t.Errorf("the viewer gets %d sandboxes", got)
	}
	viewer.Get(t, id)
	user.Delete(t, id)
}

// testTooOften asks each operation until it is refused for that. What is accepted meanwhile is
// refused for another reason.
func testTooOften(t *testing.T, s *Service) {
	AskTooOften(t, s, append(OperationsOn("11111111-2222-4333-8444-555555555555"),
		Operation{"createSandbox", "POST", "/v1/sandboxes", "{}"},
		Operation{"listSandboxes", "GET", "/v1/sandboxes?page=0", ""},
		Operation{"streamEvents", "GET", "/v1/events?after=x", ""},
		Operation{"streamHostLoad", "GET", "/v1/host/load?x=1", ""},
		Operation{"getVersion", "GET", "/v1/version", ""}))
}

// AskTooOften asks with [SlowKey] until each operation is refused for that.
func AskTooOften(t *testing.T, s *Service, operations []Operation) {
	slow := s.As(t, SlowKey)
	for _, o := range operations {
		wait.Until(t, o.Name+" is asked too often", func() bool {
			got := slow.Send(t, o.Method, o.Path, o.Body)
			if got.Status == http.StatusTooManyRequests {
				WantProblem(t, got, http.StatusTooManyRequests, "RATE_LIMITED",
					"1 requests a second")
			}
			return got.Status == http.StatusTooManyRequests
		})
	}
}

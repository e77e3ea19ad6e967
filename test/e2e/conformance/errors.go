package conformance

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"sandbox.internal/server/config"
)

// networkOperations are the operations that need a sidecar.
var networkOperations = []string{
	"getNetworkPolicy", "replaceNetworkPolicy", "mergeNetworkPolicyRules",
	"deleteNetworkPolicyRules", "listNetworkDecisions", "proposeNetworkPolicy",
}

// imageOperations are the operations that need a backend which manages images.
var imageOperations = []string{"listImages", "pullImage", "loadImages", "removeImage", "pruneImages"}

const whileStopping = "only in the moment between the end of the backend and the end of the connections"

// Why nothing in a sandbox can bring its daemon to another answer. The tests of server/api put
// another server in the daemon's place.
const (
	thisRelease = "sandboxes have the daemon of this release, which records activity"
	portOfInit  = "init keeps the daemon's port, and a request waits there for the next daemon"
)

// unprovoked lists the answers of the contract that no backend can bring about, and why.
// [Backend].Unprovoked has those of one.
var unprovoked = map[string]string{
	"getVersion 500":          "nothing that it reads can fail",
	"createSandbox 503":       whileStopping,
	"listSandboxes 503":       whileStopping,
	"getSandbox 503":          whileStopping,
	"deleteSandbox 503":       whileStopping,
	"pauseSandbox 503":        whileStopping,
	"resumeSandbox 503":       whileStopping,
	"renewExpiration 503":     whileStopping,
	"getEndpoint 503":         whileStopping,
	"updateMetadata 503":      whileStopping,
	"streamEvents 503":        whileStopping,
	"streamHostLoad 500":      "needs a machine without /proc",
	"streamHostLoad 503":      whileStopping,
	"streamSandboxEvents 503": whileStopping,

	"getActivity 501":   thisRelease,
	"getActivity 502":   portOfInit,
	"getActivity 503":   whileStopping,
	"watchActivity 501": thisRelease,
	"watchActivity 502": portOfInit,
	"watchActivity 503": whileStopping,
}

// testErrors provokes every error of the documents' tables and every other one that the contract
// declares. Its subtests share two sandboxes, because no refused request changes anything.
func testErrors(t *testing.T, b Backend) {
	s := Start(t, b, Plan{
		Keys: []config.Key{
			{Name: "user", SHA256: Digest(userKey), Role: config.RoleUser},
			{Name: "other", SHA256: Digest(OtherKey), Role: config.RoleUser},
			{Name: "viewer", SHA256: Digest(ViewerKey), Role: config.RoleViewer},
			{Name: "slow", SHA256: Digest(SlowKey), Role: config.RoleViewer,
				RateLimit: &config.RateLimit{RequestsPerSecond: 1, Burst: 1}},
		},
	})
	ended := s.Create(t, s.Idle())
	running, paused := s.Running(t, s.Idle()), s.Running(t, s.Idle())
	s.Pause(t, paused)
	s.Delete(t, ended)
	s.Await(t, ended, "Terminated")

	t.Run("keys", func(t *testing.T) { testKeys(t, s, running) })
	t.Run("scopes", func(t *testing.T) { testScopes(t, s) })
	t.Run("create", func(t *testing.T) { testRefusedCreates(t, s) })
	t.Run("renew", func(t *testing.T) { testRefusedRenewals(t, s, running) })
	t.Run("list", func(t *testing.T) { testRefusedListings(t, s) })
	t.Run("port", func(t *testing.T) { testRefusedPorts(t, s, running) })
	t.Run("states", func(t *testing.T) { testConflicts(t, s, running, paused, ended) })
	t.Run("unknown id", func(t *testing.T) { testUnknownIDs(t, s) })
	t.Run("too large", func(t *testing.T) { testTooLarge(t, s, running) })
	t.Run("idempotency", func(t *testing.T) { testIdempotency(t, s) })
	if b.Destroy != nil {
		t.Run("lost log", func(t *testing.T) { testLostLog(t, s) })
	}
	t.Run("extensions", func(t *testing.T) { testRefusedExtensions(t, s, running) })
	t.Run("unknown parameter", func(t *testing.T) {
		RefuseUnknownParameters(t, s, append(OperationsOn(running),
			Operation{"getHealth", "GET", "/health", ""},
			Operation{"getVersion", "GET", "/v1/version", ""},
			Operation{"streamHostLoad", "GET", "/v1/host/load", ""}))
	})
	t.Run("host", func(t *testing.T) { testHostLoad(t, s) })
	t.Run("activity", func(t *testing.T) { testActivity(t, s, running) })
	if !b.Suspends {
		WantProblem(t, s.Send(t, http.MethodPost, "/v1/sandboxes/"+running+"/pause", `{"filesOnly":true}`), 501, "NOT_IMPLEMENTED", "filesOnly")
	}
	t.Run("too often", func(t *testing.T) { testTooOften(t, s) })
	if b.InternalErrors != nil {
		t.Run("internal", func(t *testing.T) { b.InternalErrors(t, s, running, paused, ended) })
	}

	s.Resume(t, paused)
	s.Send(t, http.MethodGet, "/health", "")
	s.Send(t, http.MethodGet, "/v1/version", "")
	s.Renew(t, running, time.Now().Add(time.Hour).Format(time.RFC3339))
	s.Endpoint(t, running, DaemonPort)
	s.Send(t, http.MethodPatch, "/v1/sandboxes/"+running+"/metadata", `{"name":"changed"}`)
	s.Send(t, http.MethodGet, "/v1/sandboxes/"+running+"/logs", "")
	s.StreamEvents(t, "/v1/events")
	s.StreamEvents(t, "/v1/sandboxes/"+running+"/events")
	CheckProvoked(t, s, false)
}

// CheckProvoked demands that every declared answer of the operations on networks, or of all others
// but those on images, keys, snapshots and sleep, was seen or is written down as one that cannot
// be.
func CheckProvoked(t *testing.T, s *Service, network bool) {
	t.Helper()
	concerns := func(pair string) bool {
		operation := strings.Fields(pair)[0]
		return slices.Contains(networkOperations, operation) == network &&
			!slices.Contains(imageOperations, operation) && !slices.Contains(keyOperations, operation) &&
			!slices.Contains(snapshotOperations, operation) && !slices.Contains(sleepOperations, operation) &&
			pair != "createSandbox 404" && pair != "createSandbox 501"
	}
	excused := maps.Clone(unprovoked)
	maps.Copy(excused, s.backend.Unprovoked)
	if s.backend.Suspends {
		excused["pauseSandbox 501"] = "this backend keeps files without memory"
	}
	for _, pair := range s.Conform.Unseen() {
		if _, listed := excused[pair]; !listed && concerns(pair) {
			t.Errorf("the contract declares %q, and nothing here provokes it", pair)
		}
	}
	for pair := range excused {
		if concerns(pair) && slices.Contains(s.Conform.Seen(), pair) {
			t.Errorf("%q was provoked: take it off the list", pair)
		}
	}
}

// OperationsOn are all operations on a sandbox but those that need a sidecar.
func OperationsOn(id string) []Operation {
	path := "/v1/sandboxes/" + id
	return []Operation{
		{"getSandbox", "GET", path, ""},
		{"deleteSandbox", "DELETE", path, ""},
		{"pauseSandbox", "POST", path + "/pause", ""},
		{"resumeSandbox", "POST", path + "/resume", ""},
		{"renewExpiration", "POST", path + "/renew-expiration",
			Renewal(time.Now().Add(time.Hour).Format(time.RFC3339))},
		{"getEndpoint", "GET", path + "/endpoints/80", ""},
		{"updateMetadata", "PATCH", path + "/metadata", `{"name":"changed"}`},
		{"getLogs", "GET", path + "/logs", ""},
		{"streamSandboxEvents", "GET", path + "/events", ""},
		{"getActivity", "GET", path + "/activity", ""},
		{"watchActivity", "GET", path + "/activity/watch", ""},
	}
}

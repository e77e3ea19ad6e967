package api_test

import (
	"context"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/server/api"
	"sandbox.internal/server/keys"
	"sandbox.internal/server/lifecycle"
)

// roles is what each operation answers to each caller, on a sandbox that alice created. What a role
// may do is decided here: an operation of the contract without a row fails. The ports of sandboxes
// are outside of the contract and have rows of their own.
var roles = map[string]struct{ admin, owner, other, viewer, none, wrong int }{
	"getHealth":       {200, 200, 200, 200, 200, 200},
	"getVersion":      {200, 200, 200, 200, 401, 401},
	"createSandbox":   {202, 202, 202, 403, 401, 401},
	"listSandboxes":   {200, 200, 200, 200, 401, 401},
	"getSandbox":      {200, 200, 403, 200, 401, 401},
	"deleteSandbox":   {204, 204, 403, 403, 401, 401},
	"pauseSandbox":    {202, 202, 403, 403, 401, 401},
	"resumeSandbox":   {202, 202, 403, 403, 401, 401},
	"renewExpiration": {200, 200, 403, 403, 401, 401},
	"getEndpoint":     {200, 200, 403, 403, 401, 401},
	"updateMetadata":  {200, 200, 403, 403, 401, 401},
	"getLogs":         {200, 200, 403, 200, 401, 401},
	"getActivity":     {200, 200, 403, 200, 401, 401},
	"watchActivity":   {200, 200, 403, 200, 401, 401},

	"updateLifecycle": {200, 200, 403, 403, 401, 401},
	"getHolds":        {200, 200, 403, 200, 401, 401},

	"takeSnapshot":         {202, 202, 403, 403, 401, 401},
	"listSandboxSnapshots": {200, 200, 403, 200, 401, 401},
	"rollbackSandbox":      {202, 202, 403, 403, 401, 401},
	"forkSandbox":          {202, 202, 403, 403, 401, 401},
	"listSnapshots":        {200, 200, 200, 200, 401, 401},
	"getSnapshot":          {200, 200, 403, 200, 401, 401},
	"deleteSnapshot":       {204, 204, 403, 403, 401, 401},
	"getSnapshotDiff":      {200, 200, 403, 403, 401, 401},
	"exportSnapshot":       {200, 403, 403, 403, 401, 401},
	"getLineage":           {200, 200, 403, 200, 401, 401},

	"getNetworkPolicy":         {200, 200, 403, 200, 401, 401},
	"replaceNetworkPolicy":     {200, 200, 403, 403, 401, 401},
	"mergeNetworkPolicyRules":  {200, 200, 403, 403, 401, 401},
	"deleteNetworkPolicyRules": {200, 200, 403, 403, 401, 401},
	"listNetworkDecisions":     {200, 200, 403, 200, 401, 401},
	"proposeNetworkPolicy":     {200, 200, 403, 200, 401, 401},

	"listImages":  {200, 403, 403, 403, 401, 401},
	"pullImage":   {200, 403, 403, 403, 401, 401},
	"loadImages":  {200, 403, 403, 403, 401, 401},
	"removeImage": {204, 403, 403, 403, 401, 401},
	"pruneImages": {200, 403, 403, 403, 401, 401},

	"listKeys":  {200, 403, 403, 403, 401, 401},
	"createKey": {201, 403, 403, 403, 401, 401},
	"getKey":    {200, 403, 403, 403, 401, 401},
	"deleteKey": {204, 403, 403, 403, 401, 401},
	"rotateKey": {200, 403, 403, 403, 401, 401},

	"streamSandboxEvents": {200, 200, 403, 200, 401, 401},
	"streamEvents":        {200, 200, 200, 200, 401, 401},
	"streamHostLoad":      {200, 403, 403, 200, 401, 401},

	"port GET":    {299, 299, 403, 403, 401, 401},
	"port POST":   {299, 299, 403, 403, 401, 401},
	"port DELETE": {299, 299, 403, 403, 401, 401},
	"port LOCK":   {299, 299, 403, 403, 401, 401},
}

// bodies are the requests of operations that need one.
var bodies = map[string]string{
	"createSandbox":   `{"image": {"uri": "busybox"}, "timeout": 60, "resourceLimits": {}, "entrypoint": ["sleep", "60"]}`,
	"renewExpiration": `{"expiresAt": "2026-11-21T15:00:00Z"}`,
	"updateMetadata":  `{"name": "changed"}`,

	"updateLifecycle": `{"onIdle": "pause"}`,

	"createKey": `{"name": "ci", "role": "user"}`,
	"rotateKey": `{"graceSeconds": 60}`,

	"exportSnapshot":  `{"name": "team/prepared:1"}`,
	"rollbackSandbox": `{"snapshotId": "` + snapshotOfTests + `"}`,

	"pullImage":  `{"image": {"uri": "busybox"}}`,
	"loadImages": "an archive",

	"replaceNetworkPolicy":     `{"defaultAction": "deny"}`,
	"mergeNetworkPolicyRules":  `[{"action": "allow", "target": "pypi.org"}]`,
	"deleteNetworkPolicyRules": `["pypi.org"]`,
}

func TestRoles(t *testing.T) {
	document, err := contract()
	if err != nil {
		t.Fatal(err)
	}
	b := newBackend()
	b.sandbox.Status.State = lifecycle.StateRunning
	b.box = newBox(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/activity":
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, noActivity)
		case "/activity/watch":
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, ": nothing yet\n\n")
		default:
			w.WriteHeader(299)
		}
	})
	ring := keptKeys(t, nil)
	s := serveWith(t, api.Options{Backend: b, Images: &images{}, Snapshots: newSnapshots(b), Sleeper: &sleeper{backend: b}, Keys: ring, HostLoad: idle})

	requests := map[string]string{} // method and path, by the name of the row
	for path, item := range document.Paths.Map() {
		for method, operation := range item.Operations() {
			requests[operation.OperationID] = method + " " + strings.NewReplacer("{sandboxId}", b.sandbox.ID, "{port}", "80", "{imageName}", "busybox",
				"{snapshotId}", snapshotOfTests,
				"{keyName}", operation.OperationID).Replace(path)
			if strings.Contains(path, "{keyName}") {
				if _, _, err := ring.Create(t.Context(), keys.Spec{Name: operation.OperationID, Role: lifecycle.RoleUser}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for name := range requests {
		if _, ok := roles[name]; !ok {
			t.Errorf("operation %s has no row in the table of roles", name)
		}
	}
	for name := range roles {
		if method, ok := strings.CutPrefix(name, "port "); ok {
			requests[name] = method + " /v1/sandboxes/" + b.sandbox.ID + "/proxy/8000/x"
		}
	}
	for _, name := range slices.Sorted(maps.Keys(roles)) {
		row := roles[name]
		method, path, ok := strings.Cut(requests[name], " ")
		if !ok {
			t.Errorf("the contract has no operation %s", name)
			continue
		}
		for _, caller := range []struct {
			name, secret string
			want         int
		}{
			{"admin", adminSecret, row.admin}, {"the owner", aliceSecret, row.owner}, {"another user", bobSecret, row.other},
			{"viewer", viewerSecret, row.viewer}, {"no key", "", row.none}, {"a wrong key", "wrong", row.wrong},
		} {
			if got := statusOf(t, s, method, path, bodies[name], caller.secret); got != caller.want {
				t.Errorf("%s by %s: %d, want %d", name, caller.name, got, caller.want)
			}
		}
	}
}

// TestEveryoneIsAdminWithoutKeys also sends a key, which is ignored.
func TestEveryoneIsAdminWithoutKeys(t *testing.T) {
	b := newBackend()
	b.sandbox.Status.State = lifecycle.StateRunning
	b.box = newBox(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(299) })
	s := serveWith(t, api.Options{Backend: b})
	for _, secret := range []string{"", "anything"} {
		for request, want := range map[string]int{
			"GET /v1/sandboxes": 200, "DELETE /v1/sandboxes/" + b.sandbox.ID: 204, "GET /v1/sandboxes/" + b.sandbox.ID + "/proxy/8000": 299,
		} {
			method, path, _ := strings.Cut(request, " ")
			if got := statusOf(t, s, method, path, "", secret); got != want {
				t.Errorf("%s with key %q: %d, want %d", request, secret, got, want)
			}
		}
	}
}

// statusOf sends a request and waits for no more than the head of the answer.
func statusOf(t *testing.T, s *service, method, path, body, secret string) int {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
		if strings.HasSuffix(path, "/metadata") {
			r.Header.Set("Content-Type", "application/merge-patch+json")
		}
		if strings.HasSuffix(path, "/images/load") {
			r.Header.Set("Content-Type", "application/x-tar")
		}
	}
	if secret != "" {
		r.Header.Set("SERVICE-API-KEY", secret)
	}
	response, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	return response.StatusCode
}

package api_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	gen "sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/openapi/conform"
	"sandbox.internal/openapi/document"
	"sandbox.internal/openapi/serve/servetest"
	"sandbox.internal/server/api"
	"sandbox.internal/server/keys"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/reach"
)

const (
	adminSecret  = "admin-secret-0123456789"
	aliceSecret  = "alice-secret-0123456789"
	bobSecret    = "bob-secret-0123456789"
	viewerSecret = "viewer-secret-0123456789"
)

func allKeys() []keys.Key {
	return []keys.Key{
		key("server.api_key", adminSecret, lifecycle.RoleAdmin), key("alice", aliceSecret, lifecycle.RoleUser),
		key("bob", bobSecret, lifecycle.RoleUser), key("viewer", viewerSecret, lifecycle.RoleViewer),
	}
}

func TestEveryOperationNeedsAKey(t *testing.T) {
	document, err := document.LoadLifecycle()
	if err != nil {
		t.Fatal(err)
	}
	servetest.EveryOperationNeedsKey(t, document, serve(t, newBackend(), allKeys()...).url, "getHealth")
}

func TestEveryOperationRefusesUnknownParameters(t *testing.T) {
	document, err := document.LoadLifecycle()
	if err != nil {
		t.Fatal(err)
	}
	servetest.EveryOperationRefusesUnknownParameters(t, document, serve(t, newBackend(), allKeys()...).url,
		http.Header{http.CanonicalHeaderKey(reach.KeyHeader): {adminSecret}})
}

func TestRoutesAreThoseOfTheContract(t *testing.T) {
	document, err := document.LoadLifecycle()
	if err != nil {
		t.Fatal(err)
	}
	server, err := api.New(api.Options{Backend: newBackend()})
	if err != nil {
		t.Fatal(err)
	}
	var routes []string
	for _, route := range server.Echo().Routes() {
		routes = append(routes, route.Method+" "+route.Path)
	}
	// What is behind a port is the sandbox's, so the contract cannot have these paths.
	outside := []string{"/v1/sandboxes/{sandboxId}/proxy/{port}", "/v1/sandboxes/{sandboxId}/proxy/{port}/"}
	if missing, extra := conform.Routes(document, routes, outside...); len(missing)+len(extra) > 0 {
		t.Errorf("routes that the service lacks: %v; routes that the contract lacks: %v", missing, extra)
	}
}

// operations calls every operation on the sandbox alice owns.
func operations(s *service, id string) map[string]func(ctx context.Context, secret string) (int, error) {
	return map[string]func(ctx context.Context, secret string) (int, error){
		"create": func(ctx context.Context, secret string) (int, error) {
			r, err := s.client.CreateSandboxWithResponse(ctx, nil, createRequest(), with(secret))
			return r.StatusCode(), err
		},
		"list": func(ctx context.Context, secret string) (int, error) {
			r, err := s.client.ListSandboxesWithResponse(ctx, nil, with(secret))
			return r.StatusCode(), err
		},
		"get": func(ctx context.Context, secret string) (int, error) {
			r, err := s.client.GetSandboxWithResponse(ctx, id, nil, with(secret))
			return r.StatusCode(), err
		},
		"delete": func(ctx context.Context, secret string) (int, error) {
			r, err := s.client.DeleteSandboxWithResponse(ctx, id, nil, with(secret))
			return r.StatusCode(), err
		},
		"pause": func(ctx context.Context, secret string) (int, error) {
			r, err := s.client.PauseSandboxWithResponse(ctx, id, nil, gen.PauseSandboxRequest{}, with(secret))
			return r.StatusCode(), err
		},
		"resume": func(ctx context.Context, secret string) (int, error) {
			r, err := s.client.ResumeSandboxWithResponse(ctx, id, nil, with(secret))
			return r.StatusCode(), err
		},
		"renew": func(ctx context.Context, secret string) (int, error) {
			r, err := s.client.RenewExpirationWithResponse(ctx, id, gen.RenewRequest{ExpiresAt: birth}, with(secret))
			return r.StatusCode(), err
		},
		"endpoint": func(ctx context.Context, secret string) (int, error) {
			r, err := s.client.GetEndpointWithResponse(ctx, id, 80, nil, with(secret))
			return r.StatusCode(), err
		},
		"metadata": func(ctx context.Context, secret string) (int, error) {
			r, err := s.client.UpdateMetadataWithApplicationMergePatchPlusJSONBodyWithResponse(ctx, id, gen.MetadataPatch{}, with(secret))
			return r.StatusCode(), err
		},
		"logs": func(ctx context.Context, secret string) (int, error) {
			r, err := s.client.GetLogsWithResponse(ctx, id, nil, with(secret))
			return r.StatusCode(), err
		},
		"events": func(ctx context.Context, secret string) (int, error) {
			r, err := s.client.StreamSandboxEventsWithResponse(ctx, id, nil, with(secret))
			return r.StatusCode(), err
		},
		"all events": func(ctx context.Context, secret string) (int, error) {
			r, err := s.client.StreamEventsWithResponse(ctx, nil, with(secret))
			return r.StatusCode(), err
		},
		"version": func(ctx context.Context, secret string) (int, error) {
			r, err := s.client.GetVersionWithResponse(ctx, with(secret))
			return r.StatusCode(), err
		},
		"health": func(ctx context.Context, secret string) (int, error) {
			r, err := s.client.GetHealthWithResponse(ctx, with(secret))
			return r.StatusCode(), err
		},
	}
}

func TestWhoMayDoWhat(t *testing.T) {
	success := map[string]int{"create": 202, "list": 200, "get": 200, "delete": 204, "pause": 202, "resume": 202,
		"renew": 200, "endpoint": 200, "version": 200, "health": 200, "metadata": 200, "logs": 200, "events": 200, "all events": 200}
	forbidden := func(names ...string) map[string]int {
		want := map[string]int{}
		for name, status := range success {
			want[name] = status
		}
		for _, name := range names {
			want[name] = 403
		}
		return want
	}
	refused := map[string]int{"health": 200}
	for name := range success {
		if name != "health" {
			refused[name] = 401
		}
	}
	tests := []struct {
		name   string
		keys   []keys.Key
		secret string
		want   map[string]int
	}{
		{"no keys", nil, "", success},
		{"no keys, one sent all the same", nil, "anything", success},
		{"none sent", allKeys(), "", refused},
		{"wrong", allKeys(), "wrong", refused},
		{"the digest instead of the key", allKeys(), fmt.Sprintf("%x", key("", adminSecret, "").Digest), refused},
		{"admin", allKeys(), adminSecret, success},
		{"owner", allKeys(), aliceSecret, success},
		{"another user", allKeys(), bobSecret, forbidden("get", "delete", "pause", "resume", "renew", "endpoint", "metadata", "logs", "events")},
		{"viewer", allKeys(), viewerSecret, forbidden("create", "delete", "pause", "resume", "renew", "endpoint", "metadata")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBackend()
			s := serve(t, b, tt.keys...)
			for name, call := range operations(s, b.sandbox.ID) {
				if status, err := call(t.Context(), tt.secret); err != nil || status != tt.want[name] {
					t.Errorf("%s: status %d, %v; want %d", name, status, err, tt.want[name])
				}
			}
		})
	}
}

func TestOwnersAndListings(t *testing.T) {
	alice, bob := "alice", "bob"
	for _, tt := range []struct {
		secret, owner string
		sees          *string
	}{
		{adminSecret, "server.api_key", nil}, {aliceSecret, "alice", &alice}, {bobSecret, "bob", &bob},
	} {
		t.Run(tt.owner, func(t *testing.T) {
			b := newBackend()
			s := serve(t, b, allKeys()...)
			if _, err := s.client.CreateSandboxWithResponse(t.Context(), nil, createRequest(), with(tt.secret)); err != nil {
				t.Fatal(err)
			}
			if _, err := s.client.ListSandboxesWithResponse(t.Context(), nil, with(tt.secret)); err != nil {
				t.Fatal(err)
			}
			if _, err := s.client.StreamEventsWithResponse(t.Context(), nil, with(tt.secret)); err != nil {
				t.Fatal(err)
			}
			for _, got := range []*string{b.filter.Owner, b.selection.Owner} {
				if b.options.Owner != tt.owner || (got == nil) != (tt.sees == nil) || got != nil && *got != *tt.sees {
					t.Errorf("owner %q, sees %v", b.options.Owner, got)
				}
			}
		})
	}
}

func TestErrorsOfTheBackend(t *testing.T) {
	const cause = "dial unix /secret/path: connection refused"
	retry := lifecycle.Conflictf("not yet")
	retry.RetryAfter = 3
	tests := []struct {
		name   string
		err    error
		status int
		code   string
		says   string
		retry  string
	}{
		{"invalid", lifecycle.Invalidf("volumes[0]: no"), 400, "INVALID_REQUEST_BODY", "volumes[0]: no", ""},
		{"conflict", fmt.Errorf("wrapped: %w", lifecycle.Conflictf("it is Paused")), 409, "CONFLICT", "it is Paused", ""},
		{"conflict for now", retry, 409, "CONFLICT", "not yet", "3"},
		{"unavailable", &lifecycle.Error{Kind: lifecycle.KindUnavailable, Message: "stopping", RetryAfter: 1}, 503, "SERVICE_UNAVAILABLE", "stopping", "1"},
		{"internal", errors.New(cause), 500, "INTERNAL_ERROR", "internal error", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBackend()
			b.err = tt.err
			s := serve(t, b)
			response, err := s.client.GetEndpointWithResponse(t.Context(), b.sandbox.ID, 80, nil)
			if err != nil {
				t.Fatal(err)
			}
			body := string(response.Body)
			if response.StatusCode() != tt.status || !strings.Contains(body, `"`+tt.code+`"`) || !strings.Contains(body, tt.says) {
				t.Errorf("%d: %s", response.StatusCode(), body)
			}
			if got := response.HTTPResponse.Header.Get("Retry-After"); got != tt.retry {
				t.Errorf("Retry-After %q, want %q", got, tt.retry)
			}
			if strings.Contains(body, "secret") {
				t.Errorf("a client sees the cause: %s", body)
			}
			if tt.status == http.StatusInternalServerError {
				id := response.HTTPResponse.Header.Get("X-Request-ID")
				if log := s.log.text(); !strings.Contains(body, id) || !strings.Contains(log, cause) || !strings.Contains(log, id) {
					t.Errorf("request %s, body %s, log:\n%s", id, body, log)
				}
			}
		})
	}
}

func TestUnknownSandbox(t *testing.T) {
	s := serve(t, newBackend())
	for name, call := range operations(s, "11111111-2222-4333-8444-555555555555") {
		want, known := map[string]int{"create": 202, "list": 200, "all events": 200, "version": 200, "health": 200}[name]
		if !known {
			want = http.StatusNotFound
		}
		if status, err := call(t.Context(), ""); err != nil || status != want {
			t.Errorf("%s: %d, %v", name, status, err)
		}
	}
}

func TestAccessLog(t *testing.T) {
	b := newBackend()
	s := serve(t, b, allKeys()...)
	for _, call := range operations(s, b.sandbox.ID) {
		if _, err := call(t.Context(), aliceSecret); err != nil {
			t.Fatal(err)
		}
	}
	for _, operation := range []string{"createSandbox", "getSandbox", "deleteSandbox", "pauseSandbox", "resumeSandbox", "renewExpiration", "getEndpoint"} {
		line := s.log.accessLine(t, operation)
		if line["sandbox_id"] != b.sandbox.ID || line["key_name"] != "alice" || line["request_id"] == "" {
			t.Errorf("%s: %v", operation, line)
		}
	}
	for _, operation := range []string{"listSandboxes", "getVersion"} {
		if line := s.log.accessLine(t, operation); line["key_name"] != "alice" {
			t.Errorf("%s: %v", operation, line)
		}
	}
	if line := s.log.accessLine(t, "getHealth"); line["level"] != "debug" {
		t.Errorf("probes are logged at level %v", line["level"])
	}
	for _, secret := range []string{aliceSecret, "token"} {
		if strings.Contains(s.log.text(), secret) {
			t.Errorf("the log holds %q", secret)
		}
	}
}

func TestVersionAndHealth(t *testing.T) {
	s := serve(t, newBackend())
	version, err := s.client.GetVersionWithResponse(t.Context())
	if err != nil || version.JSON200 == nil || version.JSON200.Version != "1.2.3" || version.JSON200.Commit != "abc" {
		t.Errorf("%v, %s", err, version.Body)
	}
	if version.JSON200 != nil && version.JSON200.Engine != nil {
		t.Errorf("a service without an engine of its own has one: %s", version.Body)
	}
	health, err := s.client.GetHealthWithResponse(t.Context())
	if err != nil || health.JSON200 == nil || health.JSON200.Status != "healthy" {
		t.Errorf("%v, %s", err, health.Body)
	}
}

// TestDefaults: they are what the caller's key gets, and at most what it may ask for.
func TestDefaults(t *testing.T) {
	all := allKeys()
	for i := range all {
		if all[i].Name == "alice" {
			all[i].Bounds = lifecycle.Bounds{
				Default: lifecycle.ResourceLimits{"cpu": "500m"}, Max: lifecycle.ResourceLimits{"cpu": "2", "memory": "1Gi"}, MaxTimeout: 10 * time.Minute,
			}
		}
	}
	s := serveWith(t, api.Options{
		Backend: newBackend(), Keys: keys.Fixed(all...), Defaults: api.Defaults{Image: "base:1", Timeout: 20 * time.Minute},
	})
	for secret, want := range map[string]gen.CreateDefaults{
		adminSecret: {Image: new("base:1"), Timeout: 1200, Entrypoint: lifecycle.IdleEntrypoint()},
		aliceSecret: {
			Image: new("base:1"), Timeout: 600, Entrypoint: lifecycle.IdleEntrypoint(),
			ResourceLimits: gen.ResourceLimits{CPU: new("500m"), Memory: new("1Gi")},
		},
	} {
		version, err := s.client.GetVersionWithResponse(t.Context(), with(secret))
		if err != nil || version.JSON200 == nil || !reflect.DeepEqual(version.JSON200.Defaults, &want) {
			t.Errorf("%v, %s, want %+v", err, version.Body, want)
		}
	}
}

// TestEngine: what to type on the service's machine is for those who administer it.
func TestEngine(t *testing.T) {
	const problem = "nothing is forwarded: type this"
	s := serveWith(t, api.Options{
		Backend: newBackend(),
		Keys:    keys.Fixed(allKeys()...),
		Engine: &api.Engine{
			Name: "local", Version: "crun 1.14", Problem: func() string { return problem }, HostUsers: func() string { return problem },
			GPUs: func() (string, []string, error) {
				return "example.org/gpu", []string{"example.org/gpu=0"}, errors.New(problem)
			},
		},
	})
	for secret, want := range map[string]*string{adminSecret: new(problem), aliceSecret: nil, viewerSecret: nil} {
		version, err := s.client.GetVersionWithResponse(t.Context(), with(secret))
		if err != nil || version.JSON200 == nil || version.JSON200.Engine == nil {
			t.Fatalf("%s: %v, %s", secret, err, version.Body)
		}
		got := version.JSON200.Engine
		if got.Name != "local" || got.Version != "crun 1.14" || !reflect.DeepEqual(got.Problem, want) || !reflect.DeepEqual(got.HostUsers, want) {
			t.Errorf("%s: %s, want the problem %v", secret, version.Body, want)
		}
		var gpus *gen.EngineGPUs
		if want != nil {
			gpus = &gen.EngineGPUs{Kind: "example.org/gpu", Devices: []string{"example.org/gpu=0"}, Problem: want}
		}
		if !reflect.DeepEqual(got.Gpus, gpus) {
			t.Errorf("%s: the GPUs are %+v, want %+v", secret, got.Gpus, gpus)
		}
	}
}

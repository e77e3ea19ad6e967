package api_test

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	gen "sandbox.internal/clients/go/lifecycle"
	guard "sandbox.internal/openapi/serve"
	"sandbox.internal/server/api"
	"sandbox.internal/server/config"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/reach"
)

func signingKeys(t *testing.T) reach.Keys {
	t.Helper()
	keys, err := reach.ParseKeys([]byte("the-signing-key-of-these-tests-0123456789"))
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// serveSigned is a service that signs endpoints, at a time that the returned function moves.
func serveSigned(t *testing.T, change func(*api.Options)) (*portsTest, func(time.Duration)) {
	t.Helper()
	now := birth.Add(time.Minute)
	p := servePorts(t, showRequest, func(o *api.Options) {
		o.Signing, o.Clock = signingKeys(t), func() time.Time { return now }
		if change != nil {
			change(o)
		}
	})
	return p, func(by time.Duration) { now = now.Add(by) }
}

// sign asks for a signed endpoint as alice.
func (p *portsTest) sign(t *testing.T, port int, expires string, editors ...gen.RequestEditorFn) *gen.GetEndpointResponse {
	t.Helper()
	response, err := p.client.GetEndpointWithResponse(t.Context(), p.backend.sandbox.ID, port, &gen.GetEndpointParams{Expires: &expires}, append(editors, with(aliceSecret))...)
	if err != nil {
		t.Fatal(err)
	}
	return response
}

func TestSignedEndpointNeedsNoKey(t *testing.T) {
	seen := &recorder{}
	p, advance := serveSigned(t, func(o *api.Options) { o.AuditLog = seen })
	endpoint := p.sign(t, 8000, "600").JSON200
	if endpoint == nil || endpoint.Signature == nil || endpoint.ExpiresAt == nil || len(endpoint.Headers) != 0 {
		t.Fatalf("%+v", endpoint)
	}
	if want := birth.Add(11 * time.Minute).Truncate(time.Second); !endpoint.ExpiresAt.Equal(want) {
		t.Errorf("the endpoint expires at %v, want %v", endpoint.ExpiresAt, want)
	}
	path := p.path("8000", "/")
	if want := p.url + path + "?sandbox-signature=" + *endpoint.Signature; endpoint.URL != want || "http://"+endpoint.Endpoint != want {
		t.Errorf("got %s and %s, want %s", endpoint.URL, endpoint.Endpoint, want)
	}
	query := "sandbox-signature=" + url.QueryEscape(*endpoint.Signature)

	response, body := p.getOpen(t, p.path("8000", "/a%2Fb?x=%31&"+query+"&y"), "Referer", endpoint.URL, "Cookie", "a=1; "+query)
	if response.StatusCode != 200 || !strings.HasPrefix(body, "GET /proxy/8000/a%2Fb?x=%31&y\n") {
		t.Errorf("%d %s", response.StatusCode, body)
	}
	if strings.Contains(body, *endpoint.Signature) || strings.Contains(body, "sandbox-signature") {
		t.Errorf("the signature reached the sandbox:\n%s", body)
	}
	if response.Header.Get("Set-Cookie") != "" || response.Header.Get("Content-Security-Policy") != "sandbox allow-scripts allow-forms allow-popups allow-downloads" {
		t.Errorf("headers %v: no cookie may be set on the service's own origin, and pages are confined", response.Header)
	}
	// With a signature an Authorization is no key, but the program's own.
	response, body = p.getOpen(t, path+"?"+query, "Authorization", "Bearer own")
	if response.StatusCode != 200 || !strings.Contains(body, "Authorization: Bearer own") {
		t.Errorf("%d %s", response.StatusCode, body)
	}
	// As the endpoint of a sandbox on the host's network.
	response, body = p.getOpen(t, "/"+p.backend.sandbox.ID+"/8000/x?"+query)
	if response.StatusCode != 200 || !strings.HasPrefix(body, "GET /proxy/8000/x\n") || response.Header.Get("Content-Security-Policy") == "" {
		t.Errorf("%d %s", response.StatusCode, body)
	}
	for _, path := range []string{
		p.path("8001", "/?"+query),
		p.path("44772", "/?"+query),
		p.path("8000", "/?sandbox-signature=x"),
		p.path("8000", "/?sandbox-signature="),
		"/v1/sandboxes/" + p.backend.sandbox.ID + "/proxy/8000x/?" + query,
		"/" + p.backend.sandbox.ID + "/8001/?" + query,
	} {
		if response, body := p.getOpen(t, path); response.StatusCode != http.StatusUnauthorized && response.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %d %s", path, response.StatusCode, body)
		}
	}
	// It opens the port and nothing else, and not as a cookie.
	for _, path := range []string{"/v1/sandboxes/" + p.backend.sandbox.ID + "?" + query, "/v1/sandboxes/" + p.backend.sandbox.ID + "/endpoints/8000?" + query} {
		if response, _ := p.getOpen(t, path); response.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: %d", path, response.StatusCode)
		}
	}
	response, body = p.getOpen(t, path, "Cookie", query)
	wantError(t, response, body, http.StatusUnauthorized, "UNAUTHORIZED", "SERVICE-API-KEY")
	// A key counts first.
	response, body = p.getOpen(t, path+"?"+query, "SERVICE-API-KEY", "wrong")
	wantError(t, response, body, http.StatusUnauthorized, "UNAUTHORIZED", "SERVICE-API-KEY")

	p.backend.setState(lifecycle.StatePaused)
	response, body = p.getOpen(t, path+"?"+query)
	wantError(t, response, body, http.StatusConflict, "CONFLICT", "Paused")
	p.backend.setState(lifecycle.StateRunning)
	p.box.setToken("that of another sandbox with the id")
	for _, path := range []string{path, "/" + p.backend.sandbox.ID + "/8000/"} {
		response, body = p.getOpen(t, path+"?"+query)
		wantError(t, response, body, http.StatusUnauthorized, "UNAUTHORIZED", "not valid")
	}
	p.box.setToken("")
	if request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+path+"?"+query, strings.NewReader("x")); err != nil {
		t.Error(err)
	} else if response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request); err != nil {
		t.Error(err)
	} else {
		response.Body.Close()
	}
	if got, want := seen.all(), "signed endpoint reachPort "+p.backend.sandbox.ID; !slices.Contains(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
	advance(10 * time.Minute)
	response, body = p.getOpen(t, path+"?"+query)
	wantError(t, response, body, http.StatusUnauthorized, "UNAUTHORIZED", "sandbox-signature", "expired")
	if text := p.log.text(); strings.Contains(text, *endpoint.Signature) || strings.Contains(text, strings.Split(*endpoint.Signature, ".")[1]) {
		t.Error("the log holds the signature")
	}
}

func TestSignedEndpointIsRefused(t *testing.T) {
	p, _ := serveSigned(t, nil)
	for _, expires := range []string{"0", "86401", "x", "2020-01-01T00:00:00Z", birth.Add(2 * time.Hour).Format(time.RFC3339)} {
		if response := p.sign(t, 8000, expires); response.JSON400 == nil || !strings.Contains(response.JSON400.Message, "query parameter expires") {
			t.Errorf("%s: %s %s", expires, response.Status(), response.Body)
		}
	}
	expires, direct := "60", true
	response, err := p.client.GetEndpointWithResponse(t.Context(), p.backend.sandbox.ID, 8000, &gen.GetEndpointParams{Expires: &expires, Direct: &direct}, with(aliceSecret))
	if err != nil || response.JSON400 == nil {
		t.Errorf("%v, %s", err, response.Body)
	}
	if response, err := p.client.GetEndpointWithResponse(t.Context(), p.backend.sandbox.ID, 8000, &gen.GetEndpointParams{Expires: &expires}, with(viewerSecret)); err != nil || response.JSON403 == nil {
		t.Errorf("a viewer: %v, %s", err, response.Body)
	}
}

// TestEndpointsOnTheIngress has endpoints in the forms of the document ("Networking rules", 5).
func TestEndpointsOnTheIngress(t *testing.T) {
	const id = "0f7a3c52-6d1e-4d3f-8c56-5a0b4d8f1e77"
	for _, tc := range []struct {
		ingress    api.Ingress
		proto      string
		want       string
		route      string // of Service-Ingress-To
		wantScheme string
	}{
		{api.Ingress{Mode: "wildcard", Address: "*.gw.example.com"}, "https", id + "-8000.gw.example.com", "", "https"},
		{api.Ingress{Mode: "uri", Address: "gw.example.com:8443"}, "", "gw.example.com:8443/" + id + "/8000", "", "http"},
		{api.Ingress{Mode: "header", Address: "192.0.2.1"}, "", "192.0.2.1", id + "-8000", "http"},
	} {
		t.Run("row lifecycle/configuration/ingress.gateway.address: endpoints, "+tc.ingress.Mode, func(t *testing.T) {
			p, _ := serveSigned(t, func(o *api.Options) { o.Ingress = tc.ingress })
			proto := func(_ context.Context, r *http.Request) error {
				if tc.proto != "" {
					r.Header.Set("X-Forwarded-Proto", tc.proto)
				}
				return nil
			}
			response, err := p.client.GetEndpointWithResponse(t.Context(), id, 8000, nil, proto, with(aliceSecret))
			if err != nil || response.JSON200 == nil {
				t.Fatalf("%v, %s", err, response.Body)
			}
			plain := response.JSON200
			if plain.Endpoint != tc.want || plain.URL != tc.wantScheme+"://"+tc.want || plain.Headers["Service-Ingress-To"] != tc.route || plain.Headers["X-EXECD-ACCESS-TOKEN"] != "token" {
				t.Errorf("%s: %+v", tc.ingress.Mode, plain)
			}
			signed := p.sign(t, 8000, "60", proto).JSON200
			if signed.URL != tc.wantScheme+"://"+tc.want+"/?sandbox-signature="+*signed.Signature || signed.Headers["X-EXECD-ACCESS-TOKEN"] != "" || signed.Headers["Service-Ingress-To"] != tc.route {
				t.Errorf("%s: %+v", tc.ingress.Mode, signed)
			}
			direct := true
			response, err = p.client.GetEndpointWithResponse(t.Context(), id, 8000, &gen.GetEndpointParams{Direct: &direct}, with(aliceSecret))
			if err != nil || response.JSON200 == nil || !strings.HasSuffix(response.JSON200.Endpoint, ":32768/proxy/8000") {
				t.Errorf("direct: %v, %s", err, response.Body)
			}
		})
	}
}

// getOpen fetches a path without a key.
func (p *portsTest) getOpen(t *testing.T, path string, headers ...string) (*http.Response, string) {
	t.Helper()
	return p.get(t, path, append([]string{"SERVICE-API-KEY", ""}, headers...)...)
}

// TestGuessingSignaturesIsSlow: a bad signature counts as a wrong key does, and a good one does not
// stand out after too many.
func TestGuessingSignaturesIsSlow(t *testing.T) {
	p, _ := serveSigned(t, func(o *api.Options) {
		o.Limits = api.Limits{Refused: guard.Rate{PerSecond: 0.05, Burst: 3}}
	})
	endpoint := p.sign(t, 8000, "60").JSON200
	if endpoint == nil || endpoint.Signature == nil {
		t.Fatal("no signed endpoint")
	}
	good, bad := "?sandbox-signature="+url.QueryEscape(*endpoint.Signature), "?sandbox-signature=guess"
	path := p.path("8000", "/")
	for i, try := range []struct {
		query string
		want  int
	}{{good, 200}, {bad, 401}, {good, 200}, {bad, 401}, {bad, 401}, {bad, 429}, {good, 429}} {
		if response, body := p.getOpen(t, path+try.query); response.StatusCode != try.want {
			t.Errorf("request %d: %d %s, want %d", i, response.StatusCode, body, try.want)
		}
	}
	if got := statusOf(t, p.service, http.MethodGet, "/v1/sandboxes", "", aliceSecret); got != http.StatusTooManyRequests {
		t.Errorf("a key after too many bad signatures: %d", got)
	}
}

// TestReservedNames: no key can be called as requests are that come without one.
func TestReservedNames(t *testing.T) {
	if got, want := config.ReservedNames(), []string{api.NameOfSignature, api.NameOfToken}; !slices.Equal(got, want) {
		t.Errorf("reserved are %q, want %q", got, want)
	}
}

package api_test

import (
	"net/http"
	"strings"
	"testing"

	"sandbox.internal/server/api"
)

// TestKeyHeaders: a key is accepted in the document's header, and in those that people type.
func TestKeyHeaders(t *testing.T) {
	p := servePorts(t, showRequest, nil)
	path := "/v1/sandboxes/" + p.backend.sandbox.ID
	for name, tt := range map[string]struct {
		headers []string
		status  int
		word    string
	}{
		"the document's":              {[]string{"SERVICE-API-KEY", aliceSecret}, 200, ""},
		"bearer":                      {[]string{"Authorization", "Bearer " + aliceSecret}, 200, ""},
		"X-API-Key":                   {[]string{"X-API-Key", aliceSecret}, 200, ""},
		"one of two":                  {[]string{"Authorization", "Bearer own", "X-API-Key", aliceSecret}, 200, ""},
		"none":                        {nil, 401, "header SERVICE-API-KEY: is required"},
		"basic":                       {[]string{"Authorization", "Basic " + aliceSecret}, 401, "header SERVICE-API-KEY: is required"},
		"wrong bearer":                {[]string{"Authorization", "Bearer wrong"}, 401, "header Authorization: is not"},
		"wrong X-API-Key":             {[]string{"X-API-Key", "wrong"}, 401, "header X-API-Key: is not"},
		"wrong key of the document's": {[]string{"SERVICE-API-KEY", "wrong", "X-API-Key", aliceSecret}, 401, "header SERVICE-API-KEY: is not"},
		"no bearer scheme":            {[]string{"Authorization", aliceSecret}, 401, "is required"},
	} {
		response, body := p.get(t, path, append([]string{"SERVICE-API-KEY", ""}, tt.headers...)...)
		if response.StatusCode != tt.status || !strings.Contains(body, tt.word) {
			t.Errorf("%s: %d %s", name, response.StatusCode, body)
		}
		if response.StatusCode == http.StatusUnauthorized && !strings.Contains(response.Header.Get("WWW-Authenticate"), "SERVICE-API-KEY") {
			t.Errorf("%s: WWW-Authenticate %q", name, response.Header.Get("WWW-Authenticate"))
		}
	}
}

// TestPortGetsNoKeyInAnyForm: the program behind a port sees no key of the service, in whichever
// header it came, and all headers that are its own.
func TestPortGetsNoKeyInAnyForm(t *testing.T) {
	for name, change := range map[string]func(*api.Options){"with keys": nil, "open": func(o *api.Options) { o.Keys = nil }} {
		var got http.Header
		p := servePorts(t, func(_ http.ResponseWriter, r *http.Request) { got = r.Header.Clone() }, change)
		for _, tt := range []struct {
			headers []string
			own     http.Header // what arrives of the three
		}{
			{[]string{"SERVICE-API-KEY", aliceSecret, "Authorization", "Bearer own", "X-API-Key", "own"}, http.Header{"Authorization": {"Bearer own"}, "X-Api-Key": {"own"}}},
			{[]string{"Authorization", "Bearer " + aliceSecret, "X-API-Key", "own"}, http.Header{"X-Api-Key": {"own"}}},
			{[]string{"Authorization", "Bearer own", "X-API-Key", aliceSecret}, http.Header{"Authorization": {"Bearer own"}}},
			{[]string{"SERVICE-API-KEY", aliceSecret, "Authorization", "bearer " + bobSecret, "X-API-Key", adminSecret}, http.Header{}},
			{[]string{"SERVICE-API-KEY", aliceSecret, "Authorization", "Basic " + aliceSecret}, http.Header{"Authorization": {"Basic " + aliceSecret}}},
		} {
			if name == "open" { // the service has no key, so all is the sandbox's own
				tt.own = http.Header{}
				for i := 0; i < len(tt.headers); i += 2 {
					if tt.headers[i] != "SERVICE-API-KEY" {
						tt.own.Set(tt.headers[i], tt.headers[i+1])
					}
				}
			}
			response, body := p.get(t, p.path("8000", "/"), append([]string{"SERVICE-API-KEY", ""}, tt.headers...)...)
			if response.StatusCode != http.StatusOK {
				t.Fatalf("%s: %v: %d %s", name, tt.headers, response.StatusCode, body)
			}
			for _, header := range []string{"Service-Api-Key", "Authorization", "X-Api-Key"} {
				if strings.Join(got[header], "|") != strings.Join(tt.own[header], "|") {
					t.Errorf("%s: %v: the port gets %s: %q, want %q", name, tt.headers, header, got[header], tt.own[header])
				}
			}
		}
	}
}

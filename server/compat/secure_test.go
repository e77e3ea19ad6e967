package compat_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"sandbox.internal/server/lifecycle"
)

const secretHeader = "OpenSandbox-Secure-Access: "

// secured is a service with a sandbox that was made with secureAccess, and one that was not.
func secured(t *testing.T) *service {
	s := &service{t: t, answers: map[string]string{
		"GET " + sandboxPath: "200 {}", "GET " + sandboxPath + "/proxy/8000/a": "200 {}", "GET " + sandboxPath + "/proxy/44772": "200 {}",
		"GET /v1/sandboxes/plain/proxy/8000": "200 {}",
		"GET " + sandboxPath + "/endpoints/8000": `200 {"endpoint":"h:1/proxy/8000","url":"http://h:1/proxy/8000",` +
			`"headers":{"X-EXECD-ACCESS-TOKEN":"T-` + id + `"}}`,
	}}
	s.sandboxes = []lifecycle.Sandbox{{ID: id, Metadata: map[string]string{lifecycle.SecureAccessKey: "true"}}, {ID: "plain"}}
	return s
}

func body(t *testing.T, response *http.Response) string {
	t.Helper()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestSecureAccess: a create is noted in the metadata, and refused where it would promise nothing.
func TestSecureAccess(t *testing.T) {
	create := `{"timeout":60,"secureAccess":true}`
	s := &service{t: t, answers: map[string]string{"POST /v1/sandboxes": "400 {}"}}
	s.ask("POST /v1/sandboxes", create)
	if want := `POST /v1/sandboxes {"metadata":{"opensandbox.io/secure-access":"true"},"timeout":60}`; s.asked[0] != want {
		t.Errorf("the service was asked %q, want %q", s.asked[0], want)
	}
	for name, s := range map[string]*service{
		"no API key": {t: t, open: true, answers: map[string]string{"GET /v1/version": "200 {}"}},
		"network":    {t: t, hostNetwork: true, answers: map[string]string{"GET /v1/version": "200 {}"}},
	} {
		refused := s.ask("POST /v1/sandboxes", create)
		if text := body(t, refused); refused.StatusCode != 400 || !strings.Contains(text, "secureAccess: ") || !strings.Contains(text, name) {
			t.Errorf("%s: %d %s", name, refused.StatusCode, text)
		}
	}
	s = &service{t: t, answers: map[string]string{}}
	s.ask("PATCH "+sandboxPath+"/metadata", `{"opensandbox.io/secure-access":null,"a":"b"}`)
	if want := `{"a":"b"}`; !strings.HasSuffix(s.asked[0], want) {
		t.Errorf("the service was asked %q, want %q", s.asked[0], want)
	}
}

// TestSecuredPorts: a port is reached through the service with the sandbox's own secret alone,
// which does not reach the program.
func TestSecuredPorts(t *testing.T) {
	port := "GET " + sandboxPath + "/proxy/8000/a"
	for name, c := range map[string]struct {
		target string
		header []string
		status int
		says   string
	}{
		"without":               {port, nil, 401, "is required"},
		"another's":             {port, []string{secretHeader + "T-other"}, 401, "is not the secret of this sandbox"},
		"another's, and a key":  {port, []string{secretHeader + "T-other", "SERVICE-API-KEY: key"}, 401, "is not the secret"},
		"empty":                 {port, []string{secretHeader + " "}, 401, ""},
		"another's token":       {port, []string{"X-EXECD-ACCESS-TOKEN: T-other"}, 401, "is not the secret"},
		"the secret":            {port, []string{secretHeader + "T-" + id}, 200, ""},
		"the token":             {port, []string{"X-EXECD-ACCESS-TOKEN: T-" + id}, 200, ""},
		"execd without":         {"GET " + sandboxPath + "/proxy/44772", nil, 401, "is required"},
		"execd":                 {"GET " + sandboxPath + "/proxy/44772", []string{secretHeader + "T-" + id}, 200, ""},
		"without a version":     {"GET /sandboxes/" + id + "/proxy/8000/a", nil, 401, "is required"},
		"escaped":               {"GET " + strings.Replace(sandboxPath, "5", "%35", 1) + "/proxy/8000/a", nil, 401, "is required"},
		"a sandbox without it":  {"GET /v1/sandboxes/plain/proxy/8000", nil, 200, ""},
		"its header is its own": {"GET /v1/sandboxes/plain/proxy/8000", []string{secretHeader + "x"}, 200, ""},
	} {
		s := secured(t)
		response := s.ask(c.target, "", c.header...)
		if text := body(t, response); response.StatusCode != c.status || !strings.Contains(text, c.says) {
			t.Errorf("%s: %d %s", name, response.StatusCode, text)
			continue
		}
		last := len(s.asked) - 1
		if forwarded := strings.Contains(s.asked[last], "/proxy/"); forwarded != (c.status == 200) {
			t.Errorf("%s: forwarded is %t", name, forwarded)
		}
		if sent := s.headers[last].Get("OpenSandbox-Secure-Access"); sent != "" && !strings.Contains(c.target, "plain") {
			t.Errorf("%s: the service got the secret %q", name, sent)
		}
		if c.status == 401 && !strings.Contains(response.Header.Get("WWW-Authenticate"), "OpenSandbox-Secure-Access") {
			t.Errorf("%s: the challenge is %q", name, response.Header.Get("WWW-Authenticate"))
		}
	}
	// The network policy, at the port of the egress sidecar, is the service's and needs its key alone.
	s := secured(t)
	s.answers["GET "+sandboxPath+"/network-policy"] = `200 {"defaultAction":"deny"}`
	for path, want := range map[string]int{"/proxy/18080/policy": 200, "/proxy/18080/polic%79": 401, "/proxy/18080": 401, "/proxy/18080/policy/x": 401} {
		if response := s.ask("GET "+sandboxPath+path, ""); response.StatusCode != want {
			t.Errorf("%s: %s, want %d", path, response.Status, want)
		}
	}
	// While it is not known where the sandbox is, no request is forwarded, with the secret or without.
	for _, header := range [][]string{nil, {secretHeader + "T-" + id}} {
		for answer, want := range map[string]int{"409 {}": 409, "404 {}": 404, "200 {}": 503} {
			s = secured(t)
			s.lost, s.answers["GET "+sandboxPath+"/endpoints/44772"] = true, answer
			if response := s.ask(port, "", header...); response.StatusCode != want || strings.Contains(s.asked[len(s.asked)-1], "/proxy/") {
				t.Errorf("a sandbox that cannot be reached: %s, want %d; asked %q", response.Status, want, s.asked)
			}
		}
	}
	// A sandbox of another key is not there.
	s = secured(t)
	delete(s.answers, "GET "+sandboxPath)
	if response := s.ask(port, ""); response.StatusCode != 404 {
		t.Errorf("the sandbox of another key: %s", response.Status)
	}
}

// TestSecuredEndpoint: the endpoint has the headers that the port needs.
func TestSecuredEndpoint(t *testing.T) {
	for query, want := range map[string]string{
		"":                       `"headers":{"OpenSandbox-Secure-Access":"T-` + id + `","X-EXECD-ACCESS-TOKEN":"T-` + id + `"}`,
		"?use_server_proxy=true": `"headers":{"OPEN-SANDBOX-API-KEY":"key","OpenSandbox-Secure-Access":"T-` + id + `"}`,
	} {
		if text := body(t, secured(t).ask("GET "+sandboxPath+"/endpoints/8000"+query, "")); !strings.Contains(text, want) {
			t.Errorf("%q: %s, want %s", query, text, want)
		}
	}
	s := secured(t)
	s.sandboxes = nil
	if text := body(t, s.ask("GET "+sandboxPath+"/endpoints/8000", "")); strings.Contains(text, "Secure-Access") {
		t.Errorf("of a sandbox without secureAccess: %s", text)
	}
}

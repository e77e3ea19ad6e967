package app

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"sandbox.internal/server/api"
	"sandbox.internal/server/config"
	"sandbox.internal/server/console"
	"sandbox.internal/server/keys"
)

// TestPagesOfOtherHosts: the console of a service without keys begins no session for a page whose
// host leads to this machine, and takes no request of such a page with a session.
func TestPagesOfOtherHosts(t *testing.T) {
	options := api.Options{Keys: keys.Fixed(), Local: true, Session: console.Caller, Logger: zerolog.Nop()}
	server, err := api.New(options)
	if err != nil {
		t.Fatal(err)
	}
	a := &App{server: server}
	if err := a.addFrontEnds(config.Config{Server: config.Server{Console: true, MCP: true}}, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.close)
	service, stop := a.edge(t.Context())
	t.Cleanup(stop)
	ask := func(method, path, body string, headers map[string]string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		for name, value := range headers {
			r.Header.Set(name, value)
		}
		r.Host = headers["Host"]
		answer := httptest.NewRecorder()
		service.ServeHTTP(answer, r)
		return answer
	}
	const own, evil = "127.0.0.1:8080", "evil.example:8080"
	page := func(host string) map[string]string {
		return map[string]string{"Host": host, "Origin": "http://" + host}
	}
	if got := ask(http.MethodPost, "/console/session", `{"key": ""}`, page(evil)); got.Code != http.StatusUnauthorized {
		t.Errorf("a page signs in: %d %s", got.Code, got.Body)
	}
	signedIn := ask(http.MethodPost, "/console/session", `{"key": ""}`, page(own))
	var session struct{ Token string }
	if err := json.Unmarshal(signedIn.Body.Bytes(), &session); signedIn.Code != http.StatusCreated || err != nil {
		t.Fatalf("%d %s", signedIn.Code, signedIn.Body)
	}
	for host, want := range map[string]int{own: http.StatusBadRequest, evil: http.StatusUnauthorized} {
		headers := page(host)
		headers["Cookie"], headers["X-Sandbox-Console"] = signedIn.Header().Get("Set-Cookie"), session.Token
		// An error of the parameters, which are looked at last, says that the request is let in.
		if got := ask(http.MethodGet, "/console/api/v1/sandboxes?pageSize=0", "", headers); got.Code != want {
			t.Errorf("a session, and a page of %s: %d %s", host, got.Code, got.Body)
		}
	}
	foreign := map[string]string{"Host": own, "Origin": "http://evil.example"}
	if got := ask(http.MethodPost, "/v1/images/prune?all=true", "", foreign); got.Code != http.StatusUnauthorized {
		t.Errorf("a request without a body from a page: %d %s", got.Code, got.Body)
	}
}

package ingress_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"sandbox.internal/test/loopback"

	"sandbox.internal/server/ingress"
)

var modes = []ingress.Mode{ingress.ModeWildcard, ingress.ModeURI, ingress.ModeHeader}

// TestRequestArrivesAsItWasWritten has the same request in every mode.
func TestRequestArrivesAsItWasWritten(t *testing.T) {
	for _, mode := range modes {
		in := static(t, mode, http.HandlerFunc(showRequest))
		got := do(t, in.request(t, http.MethodPatch, box, 8000, "/a%2Fb/?x=%31&y", strings.NewReader("body"), "SERVICE-API-KEY", "secret-key", "X-Own", "1", "X-Request-ID", "mine"))
		prefix := map[ingress.Mode]string{ingress.ModeURI: "/" + box + "/8000"}[mode]
		want := []string{"PATCH /proxy/8000/a%2Fb/?x=%31&y", "X-Own: 1", "X-Request-Id: mine", "X-Execd-Access-Token: " + token, "X-Forwarded-Prefix: " + map[bool]string{true: "/", false: prefix}[prefix == ""]}
		lines := strings.Split(strings.ReplaceAll(got.body, "\r", ""), "\n")
		for _, line := range want {
			if !slices.Contains(lines, line) {
				t.Errorf("%s: no line %q in\n%s", mode, line, got.body)
			}
		}
		for _, absent := range []string{"secret-key", "Service-Ingress-To"} {
			if strings.Contains(got.body, absent) {
				t.Errorf("%s: %q reached the sandbox", mode, absent)
			}
		}
		if got.Header.Get("X-Request-ID") != "mine" {
			t.Errorf("%s: X-Request-ID %q", mode, got.Header["X-Request-Id"])
		}
		// Where sandboxes share an origin their pages are confined; where each has its own they are
		// not.
		if policy := got.Header.Get("Content-Security-Policy"); (policy == "sandbox allow-scripts allow-forms allow-popups allow-downloads") == (mode == ingress.ModeWildcard) {
			t.Errorf("%s: Content-Security-Policy %q", mode, policy)
		}
		if strings.Contains(in.log.text(), token) || strings.Contains(in.log.text(), "a%2Fb") {
			t.Errorf("%s: the log holds a secret or a path: %s", mode, in.log.text())
		}
	}
}

// TestServiceKeyDoesNotReachTheSandbox: the ingress's own key of the lifecycle service stays out of
// sandboxes in each of its three forms, and the keys of the program behind the port
// arrive.
func TestServiceKeyDoesNotReachTheSandbox(t *testing.T) {
	const key = "the-key-of-an-administrator"
	file := routes(t, http.HandlerFunc(showRequest), "")
	for _, mode := range modes {
		in := start(t, mode, func(s *ingress.Settings) { s.Routes, s.Key = file, key })
		for _, form := range [][2]string{{"SERVICE-API-KEY", key}, {"Authorization", "Bearer " + key}, {"Authorization", "bearer  " + key}, {"X-API-Key", key}} {
			got := in.get(t, "/", form[0], form[1])
			if got.StatusCode != http.StatusOK || strings.Contains(got.body, key) {
				t.Errorf("%s: %s reached the sandbox: %d %s", mode, form[0], got.StatusCode, got.body)
			}
		}
		if got := in.get(t, "/", "Authorization", "Bearer own", "X-API-Key", "own"); !strings.Contains(got.body, "Bearer own") || !strings.Contains(got.body, "X-Api-Key: own") {
			t.Errorf("%s: the program's own keys did not arrive: %s", mode, got.body)
		}
	}
	// Without a key there is none to take away.
	if got := static(t, ingress.ModeHeader, http.HandlerFunc(showRequest)).get(t, "/", "Authorization", "Bearer own"); !strings.Contains(got.body, "Bearer own") {
		t.Errorf("without a key: %s", got.body)
	}
}

func TestAnswerLeadsBackThroughTheIngress(t *testing.T) {
	daemon := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "http://127.0.0.1:8000/home?x#y")
		w.Header().Set("Set-Cookie", "session=1; Domain="+domain+"; Path=/; HttpOnly")
		w.WriteHeader(http.StatusSeeOther)
	})
	for mode, want := range map[ingress.Mode][2]string{
		ingress.ModeWildcard: {"/home?x#y", "session=1; Path=/; HttpOnly"},
		ingress.ModeURI:      {"/" + box + "/8000/home?x#y", "session=1; HttpOnly; Path=/" + box + "/8000"},
		ingress.ModeHeader:   {"/home?x#y", "session=1; HttpOnly; Path=/"},
	} {
		got := static(t, mode, daemon).get(t, "/login")
		if got.StatusCode != http.StatusSeeOther || got.Header.Get("Location") != want[0] || got.Header.Get("Set-Cookie") != want[1] {
			t.Errorf("%s: %d, Location %q, Set-Cookie %q", mode, got.StatusCode, got.Header.Get("Location"), got.Header.Get("Set-Cookie"))
		}
	}
}

func TestRequestsThatNameNoSandbox(t *testing.T) {
	wildcard, uri, header := static(t, ingress.ModeWildcard, http.HandlerFunc(showRequest)), static(t, ingress.ModeURI, http.HandlerFunc(showRequest)), static(t, ingress.ModeHeader, http.HandlerFunc(showRequest))
	plain := func(in *running, path, host string, headers ...string) answer {
		r := in.request(t, http.MethodGet, box, 8000, "/", nil, headers...)
		r.URL.Path, r.Host = path, host
		return do(t, r)
	}
	plain(wildcard, "/", "other.example.com").wantProblem(t, 404, "ROUTE_NOT_FOUND", "<sandbox_id>-<port>."+domain)
	plain(wildcard, "/"+box+"/8000", domain).wantProblem(t, 404, "ROUTE_NOT_FOUND")
	plain(wildcard, "/", box+"-0."+domain).wantProblem(t, 400, "INVALID_REQUEST_BODY", "port")
	plain(uri, "/", "h").wantProblem(t, 404, "ROUTE_NOT_FOUND", "/<sandbox_id>/<port>")
	plain(uri, "/"+box+"/80000", "h").wantProblem(t, 400, "INVALID_REQUEST_BODY", "65535")
	plain(header, "/", "h", "Service-Ingress-To", "").wantProblem(t, 400, "INVALID_REQUEST_BODY", "Service-Ingress-To", "required")
	plain(header, "/", "h", "Service-Ingress-To", "x").wantProblem(t, 400, "INVALID_REQUEST_BODY", "<sandbox_id>-<port>")
	for _, in := range []*running{wildcard, uri, header} {
		do(t, in.request(t, http.MethodGet, "other", 8000, "/", nil)).wantProblem(t, 404, "SANDBOX_NOT_FOUND", "other")
	}
}

func TestSandboxThatDoesNotRun(t *testing.T) {
	file := routes(t, http.HandlerFunc(showRequest), "state = \"Paused\"\n[[routes]]\nsandbox = \"starts\"\naddress = \"127.0.0.1:1\"\ntoken = \"t\"\nstate = \"Resuming\"\n")
	in := start(t, ingress.ModeHeader, func(s *ingress.Settings) { s.Routes = file })
	paused := in.get(t, "/")
	paused.wantProblem(t, 503, "SANDBOX_NOT_RUNNING", "Paused", "Running")
	if paused.Header.Get("Retry-After") != "" {
		t.Error("waiting does not wake it up")
	}
	starts := do(t, in.request(t, http.MethodGet, "starts", 1, "/", nil))
	if starts.wantProblem(t, 503, "SANDBOX_NOT_RUNNING", "Resuming"); starts.Header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After %q", starts.Header.Get("Retry-After"))
	}
}

func TestSandboxThatDoesNotAnswer(t *testing.T) {
	dead := loopback.Refusing(t)
	host, _, _ := strings.Cut(dead, ":")
	file := routeFile(t, fmt.Sprintf("[[routes]]\nsandbox = %q\naddress = %q\ntoken = %q\n[[routes]]\nsandbox = \"direct\"\nhost = %q\ntoken = %q\n", box, dead, token, host, token))
	in := start(t, ingress.ModeHeader, func(s *ingress.Settings) { s.Routes = file })
	in.get(t, "/").wantProblem(t, 502, "SANDBOX_NOT_ANSWERING", box, "8000")
	var port int
	if _, err := fmt.Sscanf(dead, host+":%d", &port); err != nil {
		t.Fatal(err)
	}
	do(t, in.request(t, http.MethodGet, "direct", port, "/", nil)).wantProblem(t, 502, "PORT_NOT_LISTENING", "direct")

	refuses := static(t, ingress.ModeHeader, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", `ApiKey header="X-EXECD-ACCESS-TOKEN"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	refuses.get(t, "/").wantProblem(t, 502, "SANDBOX_NOT_ANSWERING")
	quiet := static(t, ingress.ModeHeader, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadGateway)
		_, _ = w.Write([]byte(`{"code":"PORT_NOT_LISTENING","message":"port 8000 in the sandbox"}`))
	}))
	quiet.get(t, "/").wantProblem(t, 502, "PORT_NOT_LISTENING", "port 8000")
}

// TestDirectRoute reaches ports at a host of their own, which the sandbox's token is not for.
func TestDirectRoute(t *testing.T) {
	program := httptest.NewServer(http.HandlerFunc(showRequest))
	defer program.Close()
	host, text, _ := strings.Cut(program.Listener.Addr().String(), ":")
	var port int
	if _, err := fmt.Sscan(text, &port); err != nil {
		t.Fatal(err)
	}
	file := routeFile(t, fmt.Sprintf("[[routes]]\nsandbox = \"direct\"\nhost = %q\ntoken = %q\n", host, token))
	in := start(t, ingress.ModeURI, func(s *ingress.Settings) { s.Routes = file })
	got := do(t, in.request(t, http.MethodGet, "direct", port, "/x", nil))
	if !strings.HasPrefix(got.body, "GET /x\n") || strings.Contains(got.body, token) {
		t.Errorf("%d %s", got.StatusCode, got.body)
	}
}

func TestRoutesAreRead(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"[[routes]]\nsandbox = \"A\"\n", "routes[0].sandbox"},
		{"[[routes]]\nsandbox = \"a\"\n", "needs either address"},
		{"[[routes]]\nsandbox = \"a\"\naddress = \"x:1\"\nhost = \"x\"\n", "needs either address"},
		{"[[routes]]\nsandbox = \"a\"\naddress = \"x\"\n", "routes[0].address"},
		{"[[routes]]\nsandbox = \"a\"\naddress = \"x:1\"\n", "routes[0].token"},
		{"[[routes]]\nsandbox = \"a\"\naddress = \"x:1\"\ntoken = \"t\"\nstate = \"Asleep\"\n", "routes[0].state"},
		{"[[routes]]\nsandbox = \"a\"\naddress = \"x:1\"\ntoken = \"t\"\nport = 1\n", "strict"},
		{"[[routes]]\nsandbox = \"a\"\naddress = \"x:1\"\ntoken = \"t\"\n[[routes]]\nsandbox = \"a\"\n", "has a route already"},
		{"routes = 1", ""},
	} {
		if err := ingress.ParseRoutes([]byte(tc.text)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: %v, want %q", tc.text, err, tc.want)
		}
	}
	if err := ingress.ParseRoutes(nil); err != nil {
		t.Error(err)
	}
}

func TestSettingsAreChecked(t *testing.T) {
	for want, change := range map[string]func(*ingress.Settings){
		"--mode: is required":               func(s *ingress.Settings) { s.Mode = "" },
		"--mode: must be":                   func(s *ingress.Settings) { s.Mode = "x" },
		"--domain: must be":                 func(s *ingress.Settings) { s.Mode, s.Domain = ingress.ModeWildcard, "a_b.example" },
		"--domain: has no meaning":          func(s *ingress.Settings) { s.Domain = "example.com" },
		"--service, --kubernetes, --routes": func(s *ingress.Settings) { s.Routes = "f" },
		"--service: must be":                func(s *ingress.Settings) { s.Service = "localhost:8080" },
		"--listen":                          func(s *ingress.Settings) { s.Listen = "8081" },
		"--admin":                           func(s *ingress.Settings) { s.Admin = "x" },
		"--max-sandbox-connections":         func(s *ingress.Settings) { s.SandboxConnections = 0 },
		"--header-timeout":                  func(s *ingress.Settings) { s.HeaderTimeout = -time.Second },
		"--grace: must not be negative":     func(s *ingress.Settings) { s.Grace = -1 },
	} {
		s := ingress.DefaultSettings()
		s.Mode, s.Service = ingress.ModeURI, "http://127.0.0.1:8080"
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
		change(&s)
		if err := s.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

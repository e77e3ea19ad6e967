package api_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"sandbox.internal/test/loopback"

	"github.com/coder/websocket"

	gen "sandbox.internal/clients/go/lifecycle"
	admission "sandbox.internal/openapi/serve"
	"sandbox.internal/server/api"
	"sandbox.internal/server/keys"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

const boxToken = "the-token-of-the-sandbox"

// box is where the backend says that every sandbox is. Its execd is any handler.
type box struct {
	mu      sync.Mutex
	address string
	token   string // boxToken if empty
	asked   int
}

func newBox(t *testing.T, handler http.HandlerFunc) *box {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return &box{address: server.Listener.Addr().String()}
}

func (b *box) locate() (address, token string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked++
	return b.address, cmp.Or(b.token, boxToken)
}

func (b *box) setToken(token string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.token = token
}

// portsTest is a service in front of a Running sandbox of alice's.
type portsTest struct {
	*service
	backend *backend
	box     *box
}

func servePorts(t *testing.T, handler http.HandlerFunc, change func(*api.Options)) *portsTest {
	t.Helper()
	p := &portsTest{backend: newBackend(), box: newBox(t, handler)}
	p.backend.sandbox.Status.State, p.backend.box = lifecycle.StateRunning, p.box
	options := api.Options{Backend: p.backend, Keys: keys.Fixed(allKeys()...)}
	if change != nil {
		change(&options)
	}
	p.service = serveWith(t, options)
	return p
}

func (p *portsTest) path(port, below string) string {
	return "/v1/sandboxes/" + p.backend.sandbox.ID + "/proxy/" + port + below
}

// get fetches a path as alice, with headers given as name, value, name, value.
func (p *portsTest) get(t *testing.T, path string, headers ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("SERVICE-API-KEY", aliceSecret)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	transport := &http.Transport{DisableKeepAlives: true}
	response, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(body)
}

// wantError holds an answer to the service's form of errors.
func wantError(t *testing.T, response *http.Response, body string, status int, code string, words ...string) {
	t.Helper()
	var parsed gen.Error
	if err := json.Unmarshal([]byte(body), &parsed); err != nil {
		t.Fatalf("%d %s: %v", response.StatusCode, body, err)
	}
	if response.StatusCode != status || parsed.Code != code || parsed.Detail != parsed.Message {
		t.Errorf("%d %s, want %d %s", response.StatusCode, body, status, code)
	}
	for _, word := range words {
		if !strings.Contains(parsed.Message, word) {
			t.Errorf("%q does not say %q", parsed.Message, word)
		}
	}
	if ids := response.Header["X-Request-Id"]; len(ids) != 1 {
		t.Errorf("X-Request-ID %q, want one", ids)
	}
}

// showRequest answers with what has arrived.
func showRequest(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "%s %s\nHost: %s\n", r.Method, r.RequestURI, r.Host)
	r.Header.Write(w)
}

func TestPortGetsTheTokenAndNotTheKey(t *testing.T) {
	p := servePorts(t, showRequest, nil)
	response, body := p.get(t, p.path("8000", "/a%2Fb/?x=%31"), "X-EXECD-ACCESS-TOKEN", "guess", "X-Request-ID", "abc")
	lines := strings.Split(strings.ReplaceAll(body, "\r", ""), "\n")
	for _, want := range []string{
		"GET /proxy/8000/a%2Fb/?x=%31", "X-Execd-Access-Token: " + boxToken, "X-Request-Id: abc",
		"X-Forwarded-Prefix: " + p.path("8000", ""), "X-Forwarded-For: 127.0.0.1", "X-Forwarded-Proto: http",
		"X-Forwarded-Host: " + strings.TrimPrefix(p.url, "http://"),
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("no line %q in\n%s", want, body)
		}
	}
	for _, secret := range []string{aliceSecret, "guess"} {
		if strings.Contains(body, secret) {
			t.Errorf("%q reached the sandbox:\n%s", secret, body)
		}
	}
	if got := response.Header.Get("Content-Security-Policy"); !strings.HasPrefix(got, "sandbox allow-scripts") || strings.Contains(got, "same-origin") {
		t.Errorf("Content-Security-Policy %q", got)
	}
	if ids := response.Header["X-Request-Id"]; len(ids) != 1 || ids[0] != "abc" {
		t.Errorf("X-Request-ID %q", ids)
	}
	if _, body := p.get(t, p.path("8000", "")); !strings.HasPrefix(body, "GET /proxy/8000/\n") {
		t.Errorf("without a path: %s", body)
	}
	line := p.log.lineOf(t, func(line map[string]any) bool { return line["port"] == 8000.0 && line["message"] == "request" })
	if line["sandbox_id"] != p.backend.sandbox.ID || line["key_name"] != "alice" || line["status"] != 200.0 {
		t.Errorf("access line %v", line)
	}
}

func TestPortOfASandboxThatIsNotRunning(t *testing.T) {
	p := servePorts(t, showRequest, nil)
	for _, state := range []lifecycle.State{
		lifecycle.StatePending, lifecycle.StatePausing, lifecycle.StatePaused, lifecycle.StateResuming, lifecycle.StateStopping,
		lifecycle.StateTerminated, lifecycle.StateFailed,
	} {
		p.backend.setState(state)
		response, body := p.get(t, p.path("8000", "/"))
		wantError(t, response, body, http.StatusConflict, "CONFLICT", string(state), "Running")
		soon := state == lifecycle.StatePending || state == lifecycle.StateResuming
		if got := response.Header.Get("Retry-After"); (got != "") != soon {
			t.Errorf("%s: Retry-After %q", state, got)
		}
	}
	if p.box.asked > 0 {
		t.Error("the sandbox was looked for")
	}
}

// TestSidecarsPortIsNotForwarded: the sidecar's token would pass through the sandbox.
func TestSidecarsPortIsNotForwarded(t *testing.T) {
	p := servePorts(t, showRequest, nil)
	p.backend.box = nil // so the location has no execd
	response, body := p.get(t, p.path("18080", "/"))
	wantError(t, response, body, http.StatusConflict, "CONFLICT", "port 18080", "egress sidecar")
	response, body = p.get(t, "/"+p.backend.sandbox.ID+"/18080/", "X-EXECD-ACCESS-TOKEN", boxToken)
	wantError(t, response, body, http.StatusConflict, "CONFLICT", "port 18080", "egress sidecar")
}

// TestSidecarsEndpointIsDirect: an ingress leads through execd, which refuses the port, and root in
// the sandbox can read what execd reads.
func TestSidecarsEndpointIsDirect(t *testing.T) {
	for _, ingress := range []api.Ingress{{}, {Mode: "wildcard", Address: "*.gw.example.com"}, {Mode: "header", Address: "192.0.2.1"}} {
		p, _ := serveSigned(t, func(o *api.Options) { o.Ingress = ingress })
		p.backend.box = nil // so the location has no execd
		response, err := p.client.GetEndpointWithResponse(t.Context(), p.backend.sandbox.ID, 18080, nil, with(aliceSecret))
		if err != nil || response.JSON200 == nil || !strings.Contains(response.JSON200.Endpoint, ":32768") || response.JSON200.Headers["Service-Ingress-To"] != "" {
			t.Errorf("%q: %v, %s", ingress.Mode, err, response.Body)
		}
		if response := p.sign(t, 18080, "60"); response.JSON409 == nil || !strings.Contains(response.JSON409.Message, "port 18080") {
			t.Errorf("%q, signed: %s %s", ingress.Mode, response.Status(), response.Body)
		}
	}
}

func TestPortRefusals(t *testing.T) {
	p := servePorts(t, showRequest, nil)
	for _, port := range []string{"0", "65536", "99999999999999999999", "-1", "+80", "080", "8o", "%38080", "http", "%00"} {
		response, body := p.get(t, p.path(port, "/x"))
		wantError(t, response, body, http.StatusBadRequest, "INVALID_REQUEST_BODY", "path parameter port", "from 1 to 65535")
	}
	for _, id := range []string{"11111111-2222-4333-8444-555555555555", "..%2f..", "%00", "x"} {
		response, body := p.get(t, "/v1/sandboxes/"+id+"/proxy/8000/")
		wantError(t, response, body, http.StatusNotFound, "SANDBOX_NOT_FOUND")
	}
	response, body := p.get(t, p.path("8000", "/"), "SERVICE-API-KEY", bobSecret)
	wantError(t, response, body, http.StatusForbidden, "FORBIDDEN", "bob")
	if p.box.asked > 0 {
		t.Error("the sandbox was looked for")
	}
}

func TestPortErrorsOfExecd(t *testing.T) {
	var answer func(w http.ResponseWriter)
	p := servePorts(t, func(w http.ResponseWriter, _ *http.Request) { answer(w) }, nil)
	write := func(status int, header, value, body string) {
		answer = func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set(header, value)
			w.WriteHeader(status)
			io.WriteString(w, body)
		}
	}
	for _, code := range []string{"PORT_NOT_LISTENING", "PORT_NOT_ANSWERING"} {
		write(502, "X-Request-ID", "theirs", `{"code": "`+code+`", "message": "port 8000 in the sandbox"}`)
		response, body := p.get(t, p.path("8000", "/"))
		wantError(t, response, body, http.StatusBadGateway, code, "port 8000")
	}
	// What comes from behind execd stays as it is.
	for _, tc := range []struct {
		status              int
		header, value, body string
	}{
		{502, "X-Own", "1", `{"code": "MINE"}`},
		{502, "X-Own", "1", `[1]`},
		{502, "X-Own", "1", strings.Repeat("x", 5000)},
		{502, "Content-Type", "text/html", `{"code": "PORT_NOT_LISTENING"}`},
		{503, "Retry-After", "7", `{"code": "PORT_NOT_LISTENING"}`},
		{401, "WWW-Authenticate", `Basic realm="theirs"`, `{}`},
	} {
		write(tc.status, tc.header, tc.value, tc.body)
		response, body := p.get(t, p.path("8000", "/"))
		if response.StatusCode != tc.status || body != tc.body || response.Header.Get(tc.header) != tc.value {
			t.Errorf("%+v came out as %d %s %v", tc, response.StatusCode, body, response.Header)
		}
	}
	write(401, "WWW-Authenticate", `ApiKey header="X-EXECD-ACCESS-TOKEN"`, `{"code": "UNAUTHORIZED"}`)
	response, body := p.get(t, p.path("8000", "/"))
	wantError(t, response, body, http.StatusBadGateway, "SANDBOX_NOT_ANSWERING", p.backend.sandbox.ID, "port 8000")
	if strings.Contains(p.log.text(), boxToken) {
		t.Error("the log holds the token")
	}
}

func TestPortOfADeadDaemon(t *testing.T) {
	p := servePorts(t, showRequest, nil)
	p.box.address = loopback.Refusing(t)
	response, body := p.get(t, p.path("8000", "/"))
	wantError(t, response, body, http.StatusBadGateway, "SANDBOX_NOT_ANSWERING", p.backend.sandbox.ID, "port 8000")
}

func TestPortOfASandboxThatEndsMeanwhile(t *testing.T) {
	var p *portsTest
	p = servePorts(t, func(http.ResponseWriter, *http.Request) {
		p.backend.setState(lifecycle.StateTerminated)
		panic(http.ErrAbortHandler)
	}, nil)
	response, body := p.get(t, p.path("8000", "/"))
	wantError(t, response, body, http.StatusConflict, "CONFLICT", "Terminated")
}

func TestPortCarriesAWebSocket(t *testing.T) {
	p := servePorts(t, func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.CloseNow()
		conn.SetReadLimit(1 << 20)
		for {
			kind, message, err := conn.Read(r.Context())
			if err != nil {
				return
			}
			if err := conn.Write(r.Context(), kind, message); err != nil {
				return
			}
		}
	}, nil)
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
	defer cancel()
	conn, _, err := websocket.Dial(ctx, p.url+p.path("8000", "/ws"), &websocket.DialOptions{HTTPHeader: http.Header{"Service-Api-Key": {aliceSecret}}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	conn.SetReadLimit(1 << 20)
	for _, message := range [][]byte{[]byte("short"), bytes.Repeat([]byte("long"), 100_000)} {
		if err := conn.Write(ctx, websocket.MessageBinary, message); err != nil {
			t.Fatal(err)
		}
		if _, back, err := conn.Read(ctx); err != nil || !bytes.Equal(back, message) {
			t.Fatalf("%d bytes came back, %v, want %d", len(back), err, len(message))
		}
	}
	if err := conn.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Error(err)
	}
	line := p.log.lineOf(t, func(line map[string]any) bool { return line["port"] == 8000.0 })
	if line["status"] != 101.0 {
		t.Errorf("access line %v", line)
	}
}

func TestHostRoute(t *testing.T) {
	p := servePorts(t, showRequest, nil)
	id := p.backend.sandbox.ID
	token := []string{"X-EXECD-ACCESS-TOKEN", boxToken}

	for path, want := range map[string]string{"": "/", "/": "/", "/a%2Fb?x=1": "/a%2Fb?x=1", "/v1/sandboxes": "/v1/sandboxes"} {
		response, body := p.get(t, "/"+id+"/8000"+path, token...)
		if response.StatusCode != 200 || !strings.HasPrefix(body, "GET /proxy/8000"+want+"\n") || !strings.Contains(body, "X-Forwarded-Prefix: /"+id+"/8000\r\n") {
			t.Errorf("%s: %d %s", path, response.StatusCode, body)
		}
		if strings.Contains(body, aliceSecret) || !strings.Contains(response.Header.Get("Content-Security-Policy"), "sandbox") {
			t.Errorf("%s: the key reached the sandbox, or the policy is missing: %s %v", path, body, response.Header)
		}
	}
	// The service's own keys open nothing here: the endpoint promises that its headers suffice, and
	// they are needed.
	for _, wrong := range []string{"", "guess", boxToken + "x"} {
		response, body := p.get(t, "/"+id+"/8000/", "SERVICE-API-KEY", adminSecret, "X-EXECD-ACCESS-TOKEN", wrong)
		wantError(t, response, body, http.StatusUnauthorized, "UNAUTHORIZED", "X-EXECD-ACCESS-TOKEN")
	}
	response, body := p.get(t, "/"+id+"/080/", token...)
	wantError(t, response, body, http.StatusBadRequest, "INVALID_REQUEST_BODY", "port")
	response, body = p.get(t, "/11111111-2222-4333-8444-555555555555/8000/", token...)
	wantError(t, response, body, http.StatusNotFound, "SANDBOX_NOT_FOUND")
	p.backend.setState(lifecycle.StatePaused)
	response, body = p.get(t, "/"+id+"/8000/", token...)
	wantError(t, response, body, http.StatusConflict, "CONFLICT", "Paused")
}

// TestHostRouteLeavesOtherPathsAlone: only an id and a port lead into a sandbox.
func TestHostRouteLeavesOtherPathsAlone(t *testing.T) {
	p := servePorts(t, showRequest, nil)
	id := p.backend.sandbox.ID
	for _, path := range []string{
		"/", "/x", "/x/8000", "/" + id, "/" + strings.ToUpper(id) + "/8000", "/" + id + "x/8000", "//" + id + "/8000", "/health/8000", "/health",
		"/v1/sandboxes", "/v1/sandboxes/" + id, "/v1/version", "/v1/8000", "/v1/sandboxes/" + id + "/pause",
	} {
		if response, body := p.get(t, path, "X-EXECD-ACCESS-TOKEN", boxToken); strings.Contains(body, "/proxy/8000") {
			t.Errorf("%s led into the sandbox: %d %s", path, response.StatusCode, body)
		}
	}
}

// TestPortsAreAudited: what is sent into a sandbox through the service is recorded like every
// other change, whoever sends it.
func TestPortsAreAudited(t *testing.T) {
	seen := &recorder{}
	p := servePorts(t, showRequest, func(o *api.Options) { o.AuditLog = seen })
	id := p.backend.sandbox.ID
	send := func(path string, headers ...string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+path, strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		transport := &http.Transport{DisableKeepAlives: true}
		response, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
	}
	send(p.path("8000", "/by-key"), "SERVICE-API-KEY", aliceSecret)
	send("/"+id+"/8000/by-token", "X-EXECD-ACCESS-TOKEN", boxToken)
	send("/"+id+"/8000/by-no-one", "X-EXECD-ACCESS-TOKEN", "guess")
	want := []string{"alice reachPort " + id, "token of the sandbox reachPort " + id}
	if got := seen.all(); !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
}

// recorder is an audit log in memory.
type recorder struct {
	mu   sync.Mutex
	seen []string
}

func (r *recorder) Intend(a admission.Admission) (uint64, func() error, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, a.Principal.(lifecycle.Principal).Name+" "+a.Operation+" "+a.Params["sandboxId"])
	return uint64(len(r.seen)), func() error { return nil }, nil
}

func (r *recorder) Conclude(admission.Admission, uint64, admission.Outcome) {}

func (r *recorder) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.seen)
}

package e2b

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/listen"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

// TestDestination: a request names its sandbox by headers, by its host or by a signature, and every
// other request is one to the service.
func TestDestination(t *testing.T) {
	signature := "v1_" + strings.Repeat("A", 43)
	for name, test := range map[string]struct {
		url     string
		headers map[string]string
		want    destination
		ok      bool
	}{
		"headers":                     {"http://service/files", map[string]string{idHeader: short, portHeader: "49999"}, destination{short, codePort}, true},
		"an id alone":                 {"http://service/health", map[string]string{idHeader: short}, destination{short, daemonPort}, true},
		"a port that is none":         {"http://service/health", map[string]string{idHeader: short, portHeader: "x"}, destination{short, 0}, true},
		"a negative port":             {"http://service/health", map[string]string{idHeader: short, portHeader: "-1"}, destination{short, 0}, true},
		"a port with a sign":          {"http://service/health", map[string]string{idHeader: short, portHeader: "+44772"}, destination{short, 0}, true},
		"a port above all":            {"http://service/health", map[string]string{idHeader: short, portHeader: "110308"}, destination{short, 0}, true},
		"host":                        {"http://49983-" + short + ".sandbox.test:8443/x", nil, destination{short, daemonPort}, true},
		"host in capitals with a dot": {"http://8000-" + short + ".SANDBOX.test./x", nil, destination{short, 8000}, true},
		"headers before a host":       {"http://8000-" + short + ".sandbox.test/", map[string]string{idHeader: "other"}, destination{"other", daemonPort}, true},
		"host without a port":         {"http://x-" + short + ".sandbox.test/", nil, destination{short, 0}, true},
		"signature":                   {"http://service/files?path=/x&signature=" + signature, nil, destination{"", daemonPort}, true},
		"no signature":                {"http://service/files?path=/x&signature=v1_short", nil, destination{}, false},
		"the service":                 {"http://service/sandboxes", nil, destination{}, false},
		"another domain":              {"http://8000-" + short + ".other.test/", nil, destination{}, false},
		"a label below a label":       {"http://a.8000-" + short + ".sandbox.test/", nil, destination{}, false},
		"the domain":                  {"http://sandbox.test/sandboxes", nil, destination{}, false},
	} {
		r := httptest.NewRequestWithContext(t.Context(), "GET", test.url, nil)
		for key, value := range test.headers {
			r.Header.Set(key, value)
		}
		e := &Edge{Options: Options{Domain: "sandbox.test:8443"}}
		if got, ok := e.destination(r); got != test.want || ok != test.ok {
			t.Errorf("%s: %+v, %v, want %+v, %v", name, got, ok, test.want, test.ok)
		}
	}
}

func TestIDs(t *testing.T) {
	for sent, ok := range map[string]bool{id: true, short: true, strings.ToUpper(short): true, "": false, "x": false, short + "-8000": false, "{" + id + "}": false, "urn:uuid:" + id: false} {
		if got, found := internalID(sent); found != ok || ok && got != id {
			t.Errorf("%q: %q, %v", sent, got, found)
		}
	}
	if got := externalID(id); got != short {
		t.Errorf("%q", got)
	}
}

// sign returns the signature of a file's URL as clients make it.
func sign(path, operation, user, token, until string) string {
	text := strings.Join([]string{path, operation, user, token}, ":")
	if until != "" {
		text += ":" + until
	}
	sum := sha256.Sum256([]byte(text))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// TestTokens: a sandbox's own token goes out for what needs none, and for nothing else.
func TestTokens(t *testing.T) {
	const token = "T"
	later, before := "1764417700", "1764417500"
	at := time.Unix(1764417600, 0)
	file := func(query ...string) string {
		values := url.Values{}
		for i := 0; i < len(query); i += 2 {
			values.Set(query[i], query[i+1])
		}
		return "/files?" + values.Encode()
	}
	for name, test := range map[string]struct {
		method, path string
		port         int
		headers      map[string]string
		private      bool
		token        string
		status       int
	}{
		"health":                         {"GET", "/health", daemonPort, nil, true, token, 0},
		"token":                          {"POST", "/process.Process/Start", daemonPort, map[string]string{tokenHeader: token}, false, token, 0},
		"wrong token":                    {"POST", "/process.Process/Start", daemonPort, map[string]string{tokenHeader: "S"}, false, "", 401},
		"wrong token, health":            {"GET", "/health", daemonPort, map[string]string{tokenHeader: "S"}, false, "", 401},
		"no token":                       {"POST", "/process.Process/Start", daemonPort, nil, false, "", 401},
		"daemon by the code port":        {"POST", "/process.Process/Start", codePort, nil, false, "", 404},
		"daemon by the code port, token": {"POST", "/process.Process/Start", codePort, map[string]string{tokenHeader: token}, false, "", 404},
		"path that leads out":            {"POST", "/contexts/../process.Process/Start", codePort, nil, false, "", 404},
		"path that leads out, twice":     {"POST", "/contexts//execute", codePort, nil, false, "", 404},
		"contexts":                       {"GET", "/contexts", codePort, nil, false, token, 0},
		"a context":                      {"POST", "/contexts/3f-b/restart", codePort, nil, false, token, 0},
		"contexts of the daemon":         {"GET", "/contexts", daemonPort, nil, false, "", 401},
		"private contexts":               {"GET", "/contexts", codePort, nil, true, "", 403},
		"private contexts, traffic":      {"GET", "/contexts", codePort, map[string]string{trafficHeader: trafficToken(token)}, true, token, 0},
		"execute":                        {"POST", "/execute", codePort, nil, false, "", 401},
		"signed":                         {"GET", file("path", "/x", "signature", sign("/x", "read", "", token, "")), daemonPort, nil, false, token, 0},
		"signed for a user":              {"GET", file("path", "/x", "username", "u", "signature", sign("/x", "read", "u", token, "")), daemonPort, nil, false, token, 0},
		"signed for another user":        {"GET", file("path", "/x", "username", "v", "signature", sign("/x", "read", "u", token, "")), daemonPort, nil, false, "", 401},
		"signed for another path":        {"GET", file("path", "/y", "signature", sign("/x", "read", "", token, "")), daemonPort, nil, false, "", 401},
		"signed for reading, written":    {"POST", file("path", "/x", "signature", sign("/x", "read", "", token, "")), daemonPort, nil, false, "", 401},
		"signed for writing":             {"POST", file("path", "/x", "signature", sign("/x", "write", "", token, "")), daemonPort, nil, false, token, 0},
		"signed by another token":        {"GET", file("path", "/x", "signature", sign("/x", "read", "", "S", "")), daemonPort, nil, false, "", 401},
		"signed until later":             {"GET", file("path", "/x", "signature", sign("/x", "read", "", token, later), expirationName, later), daemonPort, nil, false, token, 0},
		"signed until before":            {"GET", file("path", "/x", "signature", sign("/x", "read", "", token, before), expirationName, before), daemonPort, nil, false, "", 401},
		"expiration left out":            {"GET", file("path", "/x", "signature", sign("/x", "read", "", token, before)), daemonPort, nil, false, "", 401},
		"expiration that is no number":   {"GET", file("path", "/x", "signature", sign("/x", "read", "", token, "x"), expirationName, "x"), daemonPort, nil, false, "", 401},
		"wrong token, right signature":   {"GET", file("path", "/x", "signature", sign("/x", "read", "", token, "")), daemonPort, map[string]string{tokenHeader: "S"}, false, "", 401},
		"signed, for the code port":      {"GET", file("path", "/x", "signature", sign("/x", "read", "", token, "")), codePort, nil, false, "", 404},
	} {
		r := httptest.NewRequestWithContext(t.Context(), test.method, "http://service"+test.path, nil)
		for key, value := range test.headers {
			r.Header.Set(key, value)
		}
		got, refused := tokenFor(r, test.port, reachable{token: token, private: test.private}, at)
		if got != test.token || (refused != nil) != (test.status != 0) || refused != nil && refused.status != test.status {
			t.Errorf("%s: %q, %+v, want %q, %d", name, got, refused, test.token, test.status)
		}
	}
}

// TestToExecd: what clients send for the service, or in its place, does not reach execd.
func TestToExecd(t *testing.T) {
	r := httptest.NewRequestWithContext(t.Context(), "GET", "http://service/files?path=%2Fa%20b&signature=s&signature_expiration=1", nil)
	for _, name := range []string{idHeader, portHeader, tokenHeader, "Service-Api-Key", sandboxHeader, templateHeader, defaultUserHeader,
		defaultDirectoryHeader, lifecycle.TokenHeader} {
		r.Header.Set(name, "forged")
	}
	r.Header.Set("Range", "bytes=0-1")
	r.Header.Set("Authorization", "Basic cm9vdDo=") // the user root
	target := reachable{user: "user", template: "one\n/ü"}
	got := toExecd(r, id, "T", target)
	if want := "/" + id + "/44772/e2b/files?path=%2Fa+b"; got.URL.String() != want || got.RequestURI != want {
		t.Errorf("%s, %s, want %s", got.URL, got.RequestURI, want)
	}
	want := map[string][]string{
		"Range": {"bytes=0-1"}, "Authorization": {"Basic cm9vdDo="}, "X-Execd-Access-Token": {"T"}, "X-E2b-Default-User": {"user"},
		"X-E2b-Own-Sandbox": {short}, "X-E2b-Own-Template": {"one%0A%2F%C3%BC"},
	}
	if !reflect.DeepEqual(map[string][]string(got.Header), want) {
		t.Errorf("%v, want %v", got.Header, want)
	}
	if r.Header.Get(tokenHeader) != "forged" {
		t.Error("the request given has changed")
	}
	r.Header.Del(tokenHeader)
	delete(want, "Authorization") // a signature is for the user that it names
	if got := toExecd(r, id, "T", target); !reflect.DeepEqual(map[string][]string(got.Header), want) {
		t.Errorf("without a token: %v, want %v", got.Header, want)
	}
}

func TestPortsOfTheDaemon(t *testing.T) {
	for port, own := range map[int]bool{44772: true, 18080: true, 32801: true, 8000: false, 22: false} {
		if got := isDaemon(port, "127.0.0.1:32801"); got != own {
			t.Errorf("port %d: %v", port, got)
		}
	}
}

// TestAttempts: a wrong token counts as a wrong key does, what is not there does not, and an
// address with too many of them is refused before the check.
func TestAttempts(t *testing.T) {
	counted := 0
	e := &Edge{Options: Options{Attempt: func(_ *http.Request, check func() error) error {
		if counted == 2 {
			return &serve.Problem{Status: http.StatusTooManyRequests, Message: "too many", RetryAfter: 1500 * time.Millisecond}
		}
		err := check()
		if err != nil {
			counted++
		}
		return err
	}}}
	r := httptest.NewRequestWithContext(t.Context(), "GET", "http://service/health", nil)
	wrong, absent := unauthenticated("wrong"), &refusal{status: http.StatusNotFound, code: "not_found", message: "absent"}
	for i, step := range []struct {
		checked *refusal
		status  int
		counted int
	}{{nil, 0, 0}, {absent, 404, 0}, {wrong, 401, 1}, {wrong, 401, 2}, {nil, 429, 2}} {
		got := e.attempt(r, func() *refusal { return step.checked })
		if status := statusOf(got); status != step.status || counted != step.counted {
			t.Errorf("%d: status %d, %d counted, want %d, %d", i, status, counted, step.status, step.counted)
		}
	}
}

func statusOf(r *refusal) int {
	if r == nil {
		return 0
	}
	return r.status
}

// TestPrivate: the ports of the machine's own network, and of a sandbox with secureAccess, always
// need the traffic token.
func TestPrivate(t *testing.T) {
	asked := lifecycle.Sandbox{Metadata: map[string]string{privateKey: yes}}
	secured := lifecycle.Sandbox{Metadata: map[string]string{lifecycle.SecureAccessKey: yes}} // by a client of OpenSandbox
	for _, test := range []struct {
		host    bool
		sandbox lifecycle.Sandbox
		want    bool
	}{{false, lifecycle.Sandbox{}, false}, {false, asked, true}, {true, lifecycle.Sandbox{}, true}, {false, secured, true}} {
		e := &Edge{Options: Options{HostNetwork: test.host}}
		if shown := e.detailed(test.sandbox, "T"); e.isPrivate(test.sandbox) != test.want || (shown.TrafficAccessToken != nil) != test.want {
			t.Errorf("%+v: %v", test, !test.want)
		}
	}
}

// TestUnreachable: an error of the service about the sandbox is 502 for clients, and what execd
// answers passes.
func TestUnreachable(t *testing.T) {
	for name, test := range map[string]struct {
		status int
		body   string
		want   int
	}{
		"ended meanwhile":   {409, `{"code":"SANDBOX_CONFLICT","message":"the sandbox is Stopping"}`, 502},
		"not there":         {404, `{"code":"SANDBOX_NOT_FOUND","message":"x"}`, 502},
		"exists":            {409, `{"code":"already_exists","message":"x"}`, 409},
		"a missing file":    {404, `{"code":404,"message":"x"}`, 404},
		"an unknown cell":   {404, `not found`, 404},
		"a long text":       {404, strings.Repeat("x", maxHeld+1), 404},
		"another error":     {400, `{"code":"INVALID_REQUEST_BODY","message":"x"}`, 400},
		"nothing to report": {204, "", 204},
		"an answer":         {200, "x", 200},
	} {
		sent := httptest.NewRecorder()
		w := &unreachableWriter{ResponseWriter: sent, id: short}
		w.WriteHeader(test.status)
		if test.body != "" {
			if _, err := w.Write([]byte(test.body)); err != nil {
				t.Error(err)
			}
		}
		if err := w.FlushError(); err != nil {
			t.Error(err)
		}
		w.finish()
		if sent.Code != test.want || test.want != 502 && sent.Body.String() != test.body {
			t.Errorf("%s: %d %.200s, want %d", name, sent.Code, sent.Body, test.want)
		}
	}
}

// backend has one sandbox that runs, whose execd is at an address.
type backend struct {
	lifecycle.Backend
	daemon string
}

func (b backend) Get(context.Context, string) (lifecycle.Sandbox, error) {
	return lifecycle.Sandbox{ID: id, Status: lifecycle.Status{State: lifecycle.StateRunning}}, nil
}

func (b backend) Locate(context.Context, string, int) (lifecycle.Location, error) {
	return lifecycle.Location{Daemon: b.daemon, Token: "T"}, nil
}

// TestUploadToAPort: a request to a port of a sandbox is no longer one of those without a key,
// whose bytes are bounded together.
func TestUploadToAPort(t *testing.T) {
	daemon := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		read, err := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, read, err)
	}))
	defer daemon.Close()
	e, err := New(Options{
		Domain: "sandbox.test", Backend: backend{daemon: daemon.Listener.Addr().String()}, IsKey: func(string) bool { return false },
	})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- listen.Serve(ctx, listener, e.Before(http.NotFoundHandler()), listen.Options{MaxUnauthenticated: 1})
	}()
	defer func() {
		stop()
		if err := wait.For(t, "the end of the server", served); err != nil {
			t.Error(err)
		}
	}()
	const length = 1 << 20 // more than 4 KiB, and more than arrives with the header
	r, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+listener.Addr().String(), strings.NewReader(strings.Repeat("x", length)))
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "8000-" + short + ".sandbox.test"
	response, err := wait.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err != nil || string(body) != fmt.Sprint(length, nil) {
		t.Errorf("%s: %q, %v", response.Status, body, err)
	}
}

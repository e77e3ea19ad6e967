package browser_test

import (
	_ "embed"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"

	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// hostile is what a page tries with the session of the console. Each member ends with what it got.
// The console is at home.
//
//go:embed testdata/hostile.js
var hostile string

// TestConsoleIsOff: without the console there is no way to a session, and none is looked for.
func TestConsoleIsOff(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{Server: "console = false"})
	cookie := []string{"Cookie", "sandbox-console=any", "X-Sandbox-Console", "any"}
	for _, path := range []string{"/console", "/console/assets/console.js", "/console/session",
		"/console/api/v1/sandboxes"} {
		if got := conformance.Fetch(t, s.URL+path, cookie...); got.Status != http.StatusNotFound {
			t.Errorf("%s: %s", path, got)
		}
	}
	if got := conformance.Fetch(t, s.URL+"/v1/sandboxes", cookie...); got.Status != http.StatusUnauthorized {
		t.Errorf("the API with a cookie: %s", got)
	}
}

// TestPagesOfSandboxesCannotUseTheConsole opens a page of a sandbox on the console's own host, and
// one on another port of it, in a browser that is signed in.
func TestPagesOfSandboxesCannotUseTheConsole(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	id := s.Running(t, conformance.Request(baseImage, "python3", "-m", "http.server", "8000"))
	b := console(t, s, s.URL, conformance.AdminKey)
	b.until(t, there("tbody tr"))

	// Where the browser sends the session's cookie although the page is not the service's: another
	// port is the same site.
	var mu sync.Mutex
	cookies := ""
	neighbour := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		cookies += r.Header.Get("Cookie")
		w.Header().Set("Content-Type", "text/html")
	}))
	t.Cleanup(neighbour.Close)

	link := parse[struct{ URL string }](t,
		s.Send(t, http.MethodGet, "/v1/sandboxes/"+id+"/endpoints/8000?expires=300", "").Body)
	status := 0
	wait.Until(t, "the sandbox serves its page", func() bool {
		status = conformance.Fetch(t, link.URL).Status
		return status == http.StatusOK
	}, func() any { return status })
	for name, page := range map[string]string{
		"through the service":      link.URL,
		"another port of the host": neighbour.URL + "/console/x",
	} {
		t.Run(name, func(t *testing.T) {
			b.do(t, "open the page", chromedp.Navigate(page))
			b.until(t, "document.readyState === 'complete'")
			b.take()
			results := parse[map[string]string](t, act(t, b, "attack", chromedp.Evaluate[string](
				fmt.Sprintf(hostile, s.URL, id), chromedp.EvalAwaitPromise)))
			if !strings.Contains(strings.Join(b.take(), "\n"), "frame-ancestors") {
				t.Error("the browser does not report that it refused the frame")
			}
			if len(results) != 12 {
				t.Errorf("%d attempts were made: %q", len(results), results)
			}
			for attempt, result := range results {
				if !strings.HasPrefix(result, "refused: ") {
					t.Errorf("%s: %s", attempt, result)
				}
			}
		})
	}
	mu.Lock()
	if !strings.Contains(cookies, "sandbox-console=") {
		t.Errorf("the browser sends %q to another port of the host: the test no longer tests that",
			cookies)
	}
	// Whoever has got the cookie there can do nothing with it.
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		s.URL+"/console/api/v1/sandboxes", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Cookie", cookies)
	mu.Unlock()
	response, err := wait.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusUnauthorized {
		t.Errorf("with the cookie alone: %s", response.Status)
	}

	if state := s.Get(t, id).Status.State; state != "Running" {
		t.Errorf("the sandbox is %s", state)
	}
	b.do(t, "open the console", chromedp.Navigate(s.URL+"/console"))
	b.until(t, there("tbody tr")) // still signed in
}

package browser_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"sandbox.internal/server/config"
	"sandbox.internal/test/e2e/conformance"
)

// second opens another tab in the browser of a tab.
func (b *tab) second(t *testing.T) *tab {
	t.Helper()
	other := &tab{home: b.home}
	ctx, closeTab := chromedp.NewContext(b.ctx, chromedp.WithListener(other.notice))
	t.Cleanup(closeTab)
	other.ctx = ctx
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("open a second tab: %v", err)
	}
	return other
}

// who is true once the page shows whose the session is.
func who(name string) string {
	return fmt.Sprintf("document.querySelector('.who')?.innerText.startsWith(%q)", name)
}

// arrives waits until an expression is true in a page that is loaded again meanwhile.
func (b *tab) arrives(t *testing.T, expression string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, rendering)
	defer cancel()
	for { // between two looks
		there, err := chromedp.Run(ctx, chromedp.Evaluate[bool](expression))
		if err == nil && there {
			return
		}
		select {
		case <-ctx.Done():
			b.picture(t, "failed")
			t.Fatalf("not within %v: %s: %v\ntroubles: %q", rendering, expression, err, b.take())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// TestConsoleTabsShareTheSession: a tab acts in the name that it shows, whatever another tab of the
// browser does, and shows nothing that it kept of another name.
func TestConsoleTabsShareTheSession(t *testing.T) {
	t.Parallel()
	const otherKey = "the-key-of-another-administrator"
	s := start(t, conformance.Plan{Keys: []config.Key{{
		Name:   "other",
		SHA256: fmt.Sprintf("%x", sha256.Sum256([]byte(otherKey))),
		Role:   "admin",
	}}})
	id := s.Running(t, s.Idle())
	b := console(t, s, s.URL, conformance.AdminKey)
	b.visit(t, "#/sandboxes/"+id+"/ports", there("#port"))
	b.enter(t, "#port", "8000")
	b.settled(t, "form .primary", there("td a"))
	b.run(t, "window.mark = 1")

	second := b.second(t)
	second.do(t, "open the console", chromedp.Navigate(s.URL+"/console"))
	second.until(t, who("server.api_key"))
	// Signing in again in the same name takes nothing away. The page is informed as if a third tab
	// had done it: its stream may have been refused before the token is there.
	signIn := func(key string) string {
		return fmt.Sprintf(`(async () => {
			const token = localStorage.getItem('sandbox-console-token');
			const headers = {'Content-Type': 'application/json', 'X-Sandbox-Console': token};
			const body = JSON.stringify({key: %q});
			const answer = await fetch('/console/session', {method: 'POST', headers, body});
			localStorage.setItem('sandbox-console-token', (await answer.json()).token);
			dispatchEvent(new StorageEvent('storage', {key: 'sandbox-console-token'}));
		})()`, key)
	}
	act(t, second, "sign in again", chromedp.Evaluate[chromedp.Void](signIn(conformance.AdminKey),
		chromedp.EvalAwaitPromise))
	b.run(t, "document.getElementById('port').value = ''")
	b.enter(t, "#port", "8001")
	b.settled(t, "form .primary", "document.querySelectorAll('tbody tr').length === 2")
	if !evaluate[bool](t, b, "window.mark === 1 && !"+says("UNAUTHORIZED")) {
		t.Error("the page was loaded again, or refused, although the name is the same")
	}

	// In another name the tab is loaded again.
	act(t, second, "sign in as another", chromedp.Evaluate[chromedp.Void](signIn(otherKey),
		chromedp.EvalAwaitPromise))
	b.arrives(t, who("other"))
	b.until(t, says("No links were made"))
	if !evaluate[bool](t, b, "window.mark === undefined") {
		t.Error("the page goes on in another name")
	}

	// The same after signing out, which ends the session of all tabs.
	second.arrives(t, who("other"))
	second.run(t, "[...document.querySelectorAll('.bar button')].at(-1).click()")
	b.until(t, says("The session has ended; sign in again."))
	second.until(t, there("#key"))
	b.enter(t, "#key", otherKey+"\r")
	b.until(t, who("other"))
	second.until(t, who("other"))
	b.enter(t, "#port", "8000")
	b.settled(t, "form .primary", there("td a"))
	b.run(t, "[...document.querySelectorAll('.bar button')].at(-1).click()")
	b.until(t, there("#key"))
	b.enter(t, "#key", conformance.AdminKey+"\r")
	b.arrives(t, who("server.api_key"))
	b.until(t, says("No links were made"))
	second.arrives(t, who("server.api_key"))
}

// TestConsoleLooksAgain: a tab whose stream was refused between the answer to another tab's sign-in
// and the moment in which that one shares its token shows the new name, and no form for a key.
func TestConsoleLooksAgain(t *testing.T) {
	t.Parallel()
	const otherKey = "the-key-of-another-administrator"
	s := start(t, conformance.Plan{Keys: []config.Key{{
		Name:   "other",
		SHA256: fmt.Sprintf("%x", sha256.Sum256([]byte(otherKey))),
		Role:   "admin",
	}}})
	b := console(t, s, s.URL, conformance.AdminKey)
	b.until(t, says("Live"))
	second := b.second(t)
	second.do(t, "open the console", chromedp.Navigate(s.URL+"/console"))
	second.until(t, who("server.api_key"))
	// The tab's own question about its session is on its way until the test lets it go on.
	b.run(t, `(() => {
		const send = window.fetch;
		window.fetch = async (url, options) => {
			const answer = await send(url, options);
			if (!window.asked && String(url).endsWith('/console/session')) {
				window.asked = true;
				await new Promise((resolve) => { window.goOn = resolve; });
			}
			return answer;
		};
		addEventListener('storage', () => { window.informed = true; });
	})()`)
	act(t, second, "sign in as another", chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`(async () => {
		const token = localStorage.getItem('sandbox-console-token');
		const headers = {'Content-Type': 'application/json', 'X-Sandbox-Console': token};
		const body = JSON.stringify({key: %q});
		window.answer = await (await fetch('/console/session', {method: 'POST', headers, body})).json();
	})()`, otherKey), chromedp.EvalAwaitPromise))
	b.until(t, "window.asked === true")
	second.run(t, "localStorage.setItem('sandbox-console-token', window.answer.token)")
	b.until(t, "window.informed === true")
	b.run(t, "window.goOn()")
	b.arrives(t, who("other"))
}

// TestConsoleOfAnOpenService: a service without keys asks for none when its sessions have ended,
// and what was typed stays.
func TestConsoleOfAnOpenService(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{Open: true})
	b := browse(t, s.URL)
	b.do(t, "open the console", chromedp.Navigate(s.URL+"/console"))
	b.until(t, there(".bar"))
	b.visit(t, "#/new", there("form.create"))
	b.enter(t, "#f-uri", "typed")
	b.until(t, says("Live"))
	const token = "localStorage.getItem('sandbox-console-token')"
	before := evaluate[string](t, b, token)
	b.run(t, fmt.Sprintf("fetch('/console/session', {method: 'DELETE', headers: {'X-Sandbox-Console': %s}})",
		token))
	b.until(t, fmt.Sprintf("%s !== %q || %s", token, before, there("#key")))
	b.until(t, there("#key")+" || "+says("Live"))
	if evaluate[bool](t, b, there("#key")) {
		t.Fatal("a service without keys asks for one")
	}
	if got := evaluate[string](t, b, "document.getElementById('f-uri').value"); got != "typed" {
		t.Errorf("of what was typed is left %q", got)
	}
}

// TestConsoleSessionOutlivesDaemons: a sandbox whose daemon answers that a request is not
// authorised ends no session.
func TestConsoleSessionOutlivesDaemons(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	id := s.Running(t, s.Idle())
	service, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	passOn := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(service)
		r.Out.Host = r.In.Host
	}}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/proxy/44772/metrics/watch") {
			http.Error(w, `{"code":"UNAUTHORIZED","message":"of the daemon"}`, http.StatusUnauthorized)
			return
		}
		passOn.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	t.Cleanup(front.CloseClientConnections)
	b := console(t, s, front.URL, conformance.AdminKey)
	b.visit(t, "#/sandboxes/"+id, says("of the daemon")+" && "+there(".bar"))
}

package browser_test

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/server/config"
	"sandbox.internal/test/e2e/conformance"
)

// keyOf is an API key of the configuration; its secret is the name with what keySuffix is.
func keyOf(name string, role config.Role) config.Key {
	digest := fmt.Sprintf("%x", sha256.Sum256([]byte(name+keySuffix)))
	return config.Key{Name: name, SHA256: digest, Role: role}
}

const keySuffix = "-key-0123456789"

// threeLooks are how pages are looked at.
var threeLooks = []look{
	{"light", 1280, 900, "light"}, {"dark", 1280, 900, "dark"}, {"narrow", 360, 740, "light"},
}

// looked checks the page in every look, and leaves it in the first.
func (b *tab) looked(t *testing.T, checker, page string) {
	t.Helper()
	for _, l := range threeLooks {
		b.show(t, l)
		b.accessible(t, checker, page+", "+l.name)
		b.picture(t, page+"-"+l.name)
	}
	b.show(t, threeLooks[0])
}

// fail makes so many sandboxes that have ended: their image has no name that a registry could have.
func (s *service) fail(t *testing.T, count int) {
	t.Helper()
	ids := make(chan string, count)
	var workers sync.WaitGroup
	left := make(chan int, count)
	for i := range count {
		left <- i
	}
	close(left)
	for range 8 {
		workers.Go(func() {
			for i := range left {
				request := conformance.Request("127.0.0.1:1/none:1", "true")
				request.Metadata = lifecycle.Metadata{"name": fmt.Sprintf("old-%d", i)}
				body := conformance.Encode(t, request)
				answer, err := s.Try("POST", "/v1/sandboxes", body)
				if err != nil || answer.Status != 202 {
					t.Errorf("create: %v, %v", answer, err)
					return
				}
				made, err := conformance.Decode[lifecycle.CreatedSandbox](answer)
				if err != nil {
					t.Error(err)
					return
				}
				ids <- made.ID
			}
		})
	}
	workers.Wait()
	close(ids)
	for id := range ids {
		s.Await(t, id, "Failed")
	}
}

const rowNames = "[...document.querySelectorAll('tbody th a')].map((e) => e.innerText).join(' ')"

// pressFirst clicks the first button with a text that begins so, as soon as it is there.
func (b *tab) pressFirst(t *testing.T, text string) {
	t.Helper()
	b.until(t, fmt.Sprintf(`(() => {
		const button = [...document.querySelectorAll('main button, dialog button')].find((e) => e.innerText.startsWith(%q));
		if (!button || button.disabled) return false;
		button.click();
		return true;
	})()`, text))
}

// TestConsoleShowsWhatHasNotEnded: of 200 sandboxes that have ended and 3 that run the three are on
// the first screen, with owner, image, limits and use; they can be sorted, and several changed at
// once.
func TestConsoleShowsWhatHasNotEnded(t *testing.T) {
	t.Parallel()
	checker := axe(t)
	s := start(t, conformance.Plan{Keys: []config.Key{keyOf("alice", "user")}})
	alice := s.As(t, "alice"+keySuffix)
	var measured []string // at the moment of a pause or an end
	for i, name := range []string{"bravo", "charlie", "alpha"} {
		request := s.Idle()
		request.Metadata = lifecycle.Metadata{"name": name}
		id := alice.Running(t, conformance.Limited(request, fmt.Sprintf("%d00m", i+3), "64Mi"))
		measured = append(measured, "409 (Conflict) "+s.URL+"/console/api/v1/sandboxes/"+id+"/proxy/44772/metrics")
	}
	s.fail(t, 200)
	b := console(t, s, s.URL, conformance.AdminKey)
	b.show(t, threeLooks[0])
	b.until(t, "document.querySelectorAll('tbody tr').length === 3")
	b.until(t, there(".host meter")) // which moves the rows
	if got := evaluate[string](t, b, rowNames); got != "alpha charlie bravo" {
		t.Errorf("the newest first are %q", got)
	}
	for _, text := range []string{"Not ended 3", "Ended 200", "All 203", "Failed 200", "Running 3"} {
		b.until(t, fmt.Sprintf("document.querySelector('.filters').innerText.replace(/\\s+/g, ' ').includes(%q)", text))
	}
	const below = "[...document.querySelectorAll('tbody tr')].filter((e) => e.getBoundingClientRect().bottom > innerHeight).length"
	if n := evaluate[int](t, b, below); n != 0 {
		t.Errorf("%d of the three are below the first screen", n)
	}
	b.until(t, "document.querySelectorAll('td.use[data-used]').length === 3")
	first := evaluate[string](t, b, "document.querySelector('tbody tr').innerText")
	conformance.Contains(t, first, "alice", busyboxImage, " % of 0.5 cores", " of 64 MiB")
	b.looked(t, checker, "overview-three")

	for _, by := range []struct{ column, want string }{ // the second click on one turns it round
		{"Name", "alpha bravo charlie"}, {"CPU", "alpha charlie bravo"},
	} {
		b.run(t, fmt.Sprintf(`[...document.querySelectorAll('.sort')]
			.find((e) => e.innerText.startsWith(%q)).click()`, by.column))
		b.until(t, fmt.Sprintf("%s === %q", rowNames, by.want))
	}
	b.run(t, "[...document.querySelectorAll('.sort')].find((e) => e.innerText.startsWith('CPU')).click()")
	b.until(t, fmt.Sprintf("%s === %q", rowNames, "bravo charlie alpha"))
	b.until(t, "document.querySelector('th[aria-sort=ascending]')?.innerText.startsWith('CPU')")

	b.enter(t, "#search", "old-7")
	b.until(t, says("more match outside of this filter"))
	b.run(t, `{
		const search = document.getElementById('search');
		search.value = '';
		search.dispatchEvent(new Event('input', {bubbles: true}));
	}`)
	b.pressFirst(t, "Ended")
	b.until(t, "document.querySelectorAll('tbody tr').length === 100")
	b.pressFirst(t, "Show more")
	b.until(t, "document.querySelectorAll('tbody tr').length === 200")
	b.pressFirst(t, "Not ended")
	b.until(t, "document.querySelectorAll('tbody tr').length === 3")

	b.click(t, "thead input[type=checkbox]")
	b.until(t, says("3 selected"))
	b.looked(t, checker, "overview-selected")
	b.pressFirst(t, "Pause 3")
	b.until(t, "document.querySelectorAll('tbody [data-state=Paused]').length === 3")
	b.click(t, "[aria-label='Select alpha']")
	b.until(t, says("2 selected"))
	b.pressFirst(t, "Resume 2")
	b.until(t, "document.querySelectorAll('tbody [data-state=Running]').length === 2")
	b.pressFirst(t, "Renew")
	b.until(t, there("dialog #renew"))
	b.run(t, `document.querySelector('dialog .primary').click()`)
	b.until(t, says("2 sandboxes renewed"))
	b.pressFirst(t, "Delete… 2")
	b.until(t, there("dialog .names"))
	b.accessible(t, checker, "delete several")
	b.run(t, "document.querySelector('dialog .danger').click()")
	b.until(t, fmt.Sprintf("%s === 'alpha'", rowNames))
	b.unexpected(t, measured...)
}

// TestConsoleCreatesAgain: a sandbox that failed is created again with what is known of its
// request.
func TestConsoleCreatesAgain(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	request := conformance.Limited(conformance.Request("127.0.0.1:1/none:1", "sh", "-c", "echo 'a b'"), "300m", "96Mi")
	request.Metadata = lifecycle.Metadata{"name": "broken", "team": "research"}
	request.Timeout = 1234
	id := s.Create(t, request)
	s.Await(t, id, "Failed")
	b := console(t, s, s.URL, conformance.AdminKey)
	b.visit(t, "#/sandboxes/"+id, there("[aria-label='Create broken again']"))
	b.settled(t, "[aria-label='Create broken again']", says("It does not keep environment variables"))
	b.until(t, fmt.Sprintf("document.forms[0].uri.value === %q", "127.0.0.1:1/none:1"))
	b.run(t, fmt.Sprintf("document.forms[0].uri.value = %q", busyboxImage))
	b.run(t, "document.forms[0].entrypoint.value += '; sleep 1000'")
	if line := evaluate[string](t, b, "document.forms[0].entrypoint.value"); line != `sh -c 'echo '\''a b'\'''; sleep 1000` {
		t.Errorf("the entrypoint is shown as %s", line)
	}
	b.run(t, `document.forms[0].entrypoint.value = "sh -c 'sleep 1000'"`)
	b.settled(t, "form .primary", fmt.Sprintf("/^#.sandboxes.(?!%s)/.test(location.hash)", id))
	again := s.Get(t, strings.TrimPrefix(evaluate[string](t, b, "location.hash"), "#/sandboxes/"))
	if again.Metadata["name"] != "broken" || again.Metadata["team"] != "research" ||
		!slices.Equal(again.Entrypoint, []string{"sh", "-c", "sleep 1000"}) ||
		again.ExpiresAt.Sub(again.CreatedAt).Seconds() != 1234 ||
		conformance.Value(again.Limits.CPUMillis) != 300 || conformance.Value(again.Limits.MemoryBytes) != 96<<20 {
		t.Errorf("the sandbox is %+v", again)
	}
}

// TestConsoleReportsALostService: a page whose service is gone says so, until it is back.
func TestConsoleReportsALostService(t *testing.T) {
	t.Parallel()
	checker := axe(t)
	s := start(t, conformance.Plan{})
	s.Running(t, s.Idle())
	b := console(t, s, s.URL, conformance.AdminKey)
	b.until(t, there("tbody tr"))
	if evaluate[bool](t, b, there(".lost")) {
		t.Error("the page has lost a service that answers")
	}
	s.Halt(t)
	b.until(t, there(".lost[role=alert]"))
	b.until(t, says("The service does not answer."))
	if !evaluate[bool](t, b, there("tbody tr")) {
		t.Error("the page shows nothing of what it knew")
	}
	b.looked(t, checker, "lost")
	s.Boot(t)
}

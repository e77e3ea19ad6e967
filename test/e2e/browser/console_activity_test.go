package browser_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"sandbox.internal/server/config"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// TestConsoleActivity: what clients do in a sandbox appears by itself, with its output for those
// who may use the sandbox; a running command is interrupted there.
func TestConsoleActivity(t *testing.T) {
	t.Parallel()
	checker := axe(t)
	s := start(t, conformance.Plan{Keys: []config.Key{keyOf("watcher", "viewer")}})
	id := s.Running(t, s.Idle())
	box := s.Enter(t, id)
	at := "#/sandboxes/" + id + "/activity"
	b := console(t, s, s.URL, conformance.AdminKey)
	b.visit(t, at, says("Nothing was done yet"))
	const failing = "echo 'said by a command'; exit 3"
	if got := box.Run(t, failing); got.Code != 3 {
		t.Fatalf("the command gives %+v", got)
	}
	entry := func(n int) string { return fmt.Sprintf(".activity li:nth-of-type(%d)", n) }
	shows := func(n int, text string) string {
		return fmt.Sprintf("document.querySelector(%q)?.innerText.includes(%q)", entry(n), text)
	}
	b.until(t, shows(1, failing))
	b.until(t, shows(1, "exit 3 after"))
	b.until(t, shows(1, "command by "))
	ended := make(chan conformance.Outcome, 1)
	go func() { // its stream ends with it
		outcome, _ := box.Try(t, "echo begun; exec sleep 1000") // what is wrong with it the page shows
		ended <- outcome
	}()
	b.until(t, shows(1, "running")+" && "+shows(2, failing)) // the newest first
	b.click(t, entry(2)+" > button")
	printed := func(n int, text string) string {
		return fmt.Sprintf("document.querySelector('%s .outputs')?.innerText.trim() === %q", entry(n), text)
	}
	b.until(t, printed(2, "said by a command"))
	b.click(t, entry(1)+" > button")
	b.until(t, printed(1, "begun"))
	if evaluate[bool](t, b, there(entry(2)+" .inside")) {
		t.Error("two entries are open")
	}
	b.looked(t, checker, "activity")
	b.pressFirst(t, "Interrupt")
	if outcome := wait.For(t, "the end of the command", ended); outcome.Code == 0 || outcome.Stdout != "begun\n" {
		t.Errorf("the command that was interrupted gives %+v", outcome)
	}
	b.until(t, fmt.Sprintf("!%s && document.querySelector(%q).dataset.state === 'failed'",
		shows(1, "running"), entry(1)))
	b.run(t, `window.firstSeen = {};
		new MutationObserver(() => {
			for (const [name] of document.querySelector('.activity').innerText.matchAll(/command-\d+/g)) {
				window.firstSeen[name] ??= Date.now();
			}
		}).observe(document.body, {subtree: true, childList: true, characterData: true});`)
	var delays []time.Duration
	for i := range 10 {
		seen := fmt.Sprintf("window.firstSeen['command-%d']", i)
		begun := time.Now()
		box.Run(t, fmt.Sprintf("echo command-%d", i))
		b.until(t, seen+" > 0")
		delays = append(delays, time.UnixMilli(int64(evaluate[float64](t, b, seen))).Sub(begun))
	}
	slices.Sort(delays)
	t.Logf("from a request to its entry in the page: median %v, longest %v", delays[5], delays[9])
	b.unexpected(t)

	b = console(t, s, s.URL, "watcher"+keySuffix)
	b.visit(t, at, shows(12, failing))
	b.click(t, entry(12)+" > button")
	b.until(t, there(entry(12)+" .inside"))
	if evaluate[bool](t, b, there(".activity .outputs")+" || "+says("said by a command\n")) {
		t.Error("a viewer is shown what a command printed")
	}
	b.unexpected(t)
}

// TestConsoleShowsCode: how to do by code what a page does is there for curl and every client, with
// the sandbox's own id; the language that was chosen stays.
func TestConsoleShowsCode(t *testing.T) {
	t.Parallel()
	checker := axe(t)
	s := start(t, conformance.Plan{})
	id := s.Running(t, s.Idle())
	b := console(t, s, s.URL, conformance.AdminKey)
	b.visit(t, "#/sandboxes/"+id+"/logs", there(".bycode summary"))
	if evaluate[bool](t, b, there(".bycode pre")) {
		t.Error("code is shown that no one has asked for")
	}
	b.click(t, ".bycode summary")
	const code = "document.querySelector('.bycode pre')?.innerText"
	for _, by := range []struct{ language, words string }{
		{"curl", `"$SANDBOX_URL/v1/sandboxes/`},
		{"Go", `client.Connect(ctx, "`},
		{"TypeScript", `client.connect("`},
		{"Python", `client.get("`},
	} {
		b.until(t, there(".bycode [aria-pressed]"))
		b.run(t, fmt.Sprintf(`[...document.querySelectorAll('.bycode button')]
			.find((e) => e.innerText === %q).click()`, by.language))
		b.until(t, fmt.Sprintf("%s.includes(%q)", code, by.words+id))
	}
	b.looked(t, checker, "code")
	b.visit(t, "#/", there(".bycode summary"))
	b.click(t, ".bycode summary")
	b.until(t, fmt.Sprintf("%s?.includes('for sandbox in client.list(')", code))
	b.unexpected(t)
}

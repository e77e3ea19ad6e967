package browser_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/server/config"
	"sandbox.internal/test/e2e/conformance"
)

// console opens the console and signs in.
func console(t *testing.T, s *service, home, key string) *tab {
	t.Helper()
	b := browse(t, home)
	b.do(t, "open the console", chromedp.Navigate(home+"/console"))
	b.until(t, "document.querySelector('#key, .bar') !== null")
	b.enter(t, "#key", key+"\r")
	b.until(t, "document.querySelector('.bar') !== null")
	return b
}

// visit shows a part of the console, and waits until what is wanted is there.
func (b *tab) visit(t *testing.T, hash, expression string) {
	t.Helper()
	b.run(t, fmt.Sprintf("location.hash = %q", hash))
	b.until(t, expression)
}

// run runs a script in the page.
func (b *tab) run(t *testing.T, script string) {
	t.Helper()
	evaluate[chromedp.Void](t, b, script)
}

// there is true once an element of the CSS selector is in the page.
func there(selector string) string {
	return fmt.Sprintf("document.querySelector(%q) !== null", selector)
}

// says is true once the page shows a text.
func says(text string) string { return fmt.Sprintf("document.body.innerText.includes(%q)", text) }

// settled clicks, and waits for what that leads to.
func (b *tab) settled(t *testing.T, selector, expression string) {
	t.Helper()
	b.click(t, selector)
	b.until(t, expression)
}

func parse[T any](t *testing.T, text string) (value T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return value
}

// look is how a page is shown.
type look struct {
	name          string
	width, height int64
	scheme        string
}

func (b *tab) show(t *testing.T, l look) {
	t.Helper()
	b.do(t, "show "+l.name,
		command(
			emulation.SetDeviceMetricsOverride,
			emulation.SetDeviceMetricsOverrideParams{
				Width:             l.width,
				Height:            l.height,
				DeviceScaleFactor: 1,
			},
		),
		command(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: l.scheme}},
		}))
}

// axe is the accessibility checker, of the console's own packages.
func axe(t *testing.T) string {
	t.Helper()
	packages := conformance.NodePackages(t, "server/console/web")
	source, err := os.ReadFile(filepath.Join(packages, "axe-core/axe.min.js"))
	if err != nil {
		t.Fatal(err)
	}
	return string(source) + ";undefined"
}

// accessible reports what is wrong with the page for people who use a screen reader or see badly.
func (b *tab) accessible(t *testing.T, checker, name string) {
	t.Helper()
	if !evaluate[bool](t, b, "typeof axe === 'object'") {
		b.run(t, checker)
	}
	found := act(t, b, "check "+name, chromedp.Evaluate[string](
		`axe.run(document, {resultTypes: ['violations']}).then((result) => {
			const parts = (v) => v.nodes.slice(0, 3).map((n) => n.html + ' ' + n.failureSummary);
			const wrong = result.violations.map((v) => [v.id, ...parts(v)].join(' '));
			return JSON.stringify({passes: result.passes.length, wrong});
		})`,
		chromedp.EvalAwaitPromise,
	))
	result := parse[struct {
		Passes int
		Wrong  []string
	}](t, found)
	if result.Passes < 10 {
		t.Errorf("%s: only %d rules apply: nothing was checked", name, result.Passes)
	}
	for _, wrong := range result.Wrong {
		t.Errorf("%s: %s", name, wrong)
	}
	if wide := evaluate[int](t, b, "document.documentElement.scrollWidth - innerWidth"); wide > 0 {
		t.Errorf("%s: the page is %d pixels wider than the window", name, wide)
	}
}

// TestConsolePages uses every page of the console as a person does, and looks at it wide, narrow,
// light and dark.
func TestConsolePages(t *testing.T) {
	t.Parallel()
	checker := axe(t)
	s := startWithPython(t, conformance.Plan{
		Settings: classSettings + fmt.Sprintf("[egress]\nimage = %q\n", egressImage),
	})
	b := browse(t, s.URL)
	looks := []look{
		{"light", 1280, 900, "light"},
		{"dark", 1280, 900, "dark"},
		{"narrow", 360, 740, "light"},
	}
	check := func(page string) {
		t.Helper()
		for _, l := range looks {
			b.show(t, l)
			b.accessible(t, checker, page+", "+l.name)
			b.picture(t, page+"-"+l.name)
		}
		b.show(t, looks[0])
	}

	b.do(t, "open the console", chromedp.Navigate(s.URL+"/console"))
	b.until(t, there("#key"))
	check("signin")
	b.enter(t, "#key", "wrong\r")
	b.until(t, says("UNAUTHORIZED"))
	b.enter(t, "#key", conformance.AdminKey+"\r")
	b.until(t, there(".bar"))
	b.until(t, says("There is no sandbox"))
	b.until(t, says("Live"))
	kept := b.stored(t)
	if strings.Contains(kept, conformance.AdminKey) || !strings.HasSuffix(kept, `,{},""]`) {
		t.Errorf("the page has stored %s", kept)
	}

	// A create that another client sends appears by itself.
	request := conformance.Request(pythonImage, "sh", "-c",
		"echo said by the entrypoint; exec python3 -m http.server 8000")
	request.Metadata = lifecycle.Metadata{"name": "worker"}
	id := s.Running(t, request)
	b.until(t, `document.querySelector('tbody tr')?.innerText.includes('Running')`)
	b.until(t, "document.querySelectorAll('.host meter').length === 3")
	for _, text := range []string{"Processor", " cores", "Memory", "Disk"} {
		b.until(t, says(text))
	}
	check("overview")
	b.visit(t, "#/new", there("form.create #f-runtimeClass"))
	for _, image := range []string{pythonImage, busyboxImage} {
		b.until(t, there(fmt.Sprintf("#images option[value$=%q]", image)))
	}
	b.run(t, "document.querySelectorAll('details').forEach((d) => { d.open = true; })")
	check("new")

	at := "#/sandboxes/" + id
	b.visit(t, at, there(".charts polyline"))
	check("summary")
	s.change(t, id, `{"onTimeout":"pause","autoResume":false}`) // another client
	b.until(t, says("paused when its time is up, not woken by requests"))
	b.visit(t, at+"/logs", says("said by the entrypoint"))
	check("logs")
	b.visit(t, at+"/events", says("ready"))
	b.until(t, says("Sleep: paused when its time is up, not woken by requests"))
	check("events")

	b.visit(t, at+"/notebook", there("article textarea"))
	b.enter(t, "article textarea", `import base64, sys
from IPython.display import Image, HTML, display
print('printed'); print('complained', file=sys.stderr)
dot = ('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9Q'
'DwADhgGAWjR9awAAAABJRU5ErkJggg==')
display(Image(base64.b64decode(dot), alt='dot'))
display(HTML('<script>window.hurt = 1</script><table><tr><td onclick="x" style="color: red">'
'cell<img src=x onerror="window.hurt = 1"></td></tr></table>'))
6 * 7`)
	b.settled(t, "article .tools button", there("article[data-status=done]"))
	for _, text := range []string{"printed", "complained", "42"} {
		b.until(t, says(text))
	}
	b.until(t, "document.querySelector('.outputs > img')?.naturalWidth === 1")
	markup := evaluate[string](t, b, "document.querySelector('.markup').innerHTML")
	if strings.Contains(markup, "=") || !strings.Contains(markup, "<td>cell</td>") {
		t.Errorf("the page shows HTML of a sandbox as %s", markup)
	}
	if evaluate[bool](t, b, "'hurt' in window") {
		t.Error("a script of a sandbox ran in the console")
	}
	check("notebook")

	b.visit(t, at+"/network", there("#default"))
	b.enter(t, "input[name=target]", "*.example.com\r")
	b.until(t, says("*.example.com"))
	check("network")
	// What is not applied is not shown.
	cut := func(conditions ...*network.Conditions) {
		t.Helper()
		b.do(t, "cut the network", command(network.EmulateNetworkConditionsByRule,
			network.EmulateNetworkConditionsByRuleParams{MatchedNetworkConditions: conditions}))
	}
	cut(&network.Conditions{
		URLPattern: s.URL + "/console/api/v1/sandboxes/*/network-policy", Offline: true,
		DownloadThroughput: -1, UploadThroughput: -1,
	})
	b.run(t, `(() => {
		const select = document.getElementById('default');
		select.value = 'deny';
		select.dispatchEvent(new Event('change', { bubbles: true }));
	})()`)
	b.until(t, says("UNREACHABLE"))
	if shown := evaluate[string](t, b, "document.getElementById('default').value"); shown != "allow" {
		t.Errorf("the page shows %q for a policy that was not applied", shown)
	}
	cut([]*network.Conditions{}...)
	b.visit(t, at+"/ports", there("[aria-label='Make a link to port 8000']"))
	b.until(t, `document.querySelector('.listening').innerText.includes('python3')`)
	b.settled(t, "[aria-label='Make a link to port 8000']", there("td a"))
	link := evaluate[string](t, b, "document.querySelector('td a').href")
	if answer := conformance.Fetch(t, link); answer.Status != http.StatusOK {
		t.Errorf("the link %s gives %s", link, answer)
	}
	check("ports")

	b.visit(t, at+"/files", there("table.files"))
	check("files")
	named := func(name string) string {
		return fmt.Sprintf(
			"[...document.querySelectorAll('.panel button')].find((e) => e.innerText === %q)",
			name,
		)
	}
	b.run(t, named("srv/")+".click()")
	b.until(t, says("The folder is empty"))
	b.run(t, named("New file…")+".click()")
	b.enter(t, "#name", "made.txt\r")
	b.until(t, named("made.txt")+" !== undefined") // the page watches the directory
	b.run(t, named("made.txt")+".click()")
	b.enter(t, "textarea.editor", "typed")
	check("file")
	b.run(t, named("Save")+".click()")
	b.until(t, "!"+says("not saved"))
	b.run(t, named("Back")+".click()")
	b.until(t, says("5 B"))

	// What the API refuses is shown as the API says it, beside the field.
	b.visit(t, "#/new", there("form.create"))
	b.enter(t, "#f-uri", busyboxImage)
	b.run(t, "document.querySelectorAll('details').forEach((d) => { d.open = true; })")
	b.enter(t, "#f-volumes", `[{"name": "x"}]`)
	b.settled(t, "form .primary", there(".problem"))
	b.until(t, says("body/volumes/0"))
	b.until(t, there("#f-volumes[aria-invalid=true]"))
	b.run(t, "document.forms[0].volumes.value = document.forms[0].entrypoint.value = ''")
	b.enter(t, "#f-entrypoint", `sh -c "sleep 100 # 'a  b' \"c\"" '' d\ e`)
	b.run(t, "document.forms[0].runtimeClass.value = 'chosen'")
	b.settled(t, "form .primary", "location.hash.startsWith('#/sandboxes/')")
	made := s.Get(t, strings.TrimPrefix(evaluate[string](t, b, "location.hash"), "#/sandboxes/"))
	if class := made.RuntimeClass; class == nil || *class != "chosen" {
		t.Errorf("the runtime class is %v", class)
	}
	want := []string{"sh", "-c", `sleep 100 # 'a  b' "c"`, "", "d e"}
	if !slices.Equal(made.Entrypoint, want) {
		t.Errorf("the entrypoint is %q, want %q", made.Entrypoint, want)
	}

	b.visit(t, at, there(".head .tools button"))
	b.settled(t, "[aria-label='Pause worker']", there(".head [data-state=Paused]"))
	b.until(t, there("[aria-label='Resume worker']:focus"))
	b.visit(t, at+"/terminal", says("The sandbox is Paused"))
	if !evaluate[bool](t, b, "document.querySelector('.panel button').disabled") {
		t.Error("a terminal of a paused sandbox can be opened")
	}
	check("paused")
	b.settled(t, "[aria-label='Delete worker']", there("dialog"))
	check("delete")
	b.settled(t, "dialog .danger",
		there(".head :is([data-state=Stopping], [data-state=Terminated])"))
	b.run(t, "[...document.querySelectorAll('.bar button')].at(-1).click()")
	b.until(t, there("#key"))
	if kept = b.stored(t); kept != `[{},{},""]` {
		t.Errorf("after signing out the page has stored %s", kept)
	}
	api, red := s.URL+"/console/api/v1/sandboxes", sha256.Sum256([]byte("color: red"))
	b.unexpected(t, "401 (Unauthorized) "+s.URL+"/console/session", // the wrong key
		// the HTML of the sandbox, which is parsed to be reduced
		"Executing inline event handler violates", base64.StdEncoding.EncodeToString(red[:]),
		"net::ERR_INTERNET_DISCONNECTED "+api+"/"+id+"/network-policy",
		"404 (Not Found) "+api+"/"+id+"/proxy/44772/files/info?", // whether the new file exists
		"409 (Conflict) "+api+"/"+id+"/proxy/44772/metrics",      // measured at the moment of its pause or end
		"400 (Bad Request) "+api)                                 // the volume without a path
}

// TestConsoleRoles: a viewer sees every sandbox and no button that it may not use, a user its own
// sandboxes alone.
func TestConsoleRoles(t *testing.T) {
	t.Parallel()
	key := func(name, role string) config.Key {
		return config.Key{
			Name:   name,
			SHA256: fmt.Sprintf("%x", sha256.Sum256([]byte(name+"-key-0123456789"))),
			Role:   config.Role(role),
		}
	}
	s := start(t, conformance.Plan{Keys: []config.Key{key("watcher", "viewer"), key("alice", "user")}})
	id := s.Running(t, s.Idle())

	b := console(t, s, s.URL, "watcher-key-0123456789")
	b.until(t, there("tbody tr"))
	b.until(t, there(".host meter"))
	buttons := func(without string) string {
		return evaluate[string](t, b, fmt.Sprintf(
			`[...document.querySelectorAll('main :is(button, .button, input, select, textarea)')]
				.filter((e) => e.checkVisibility()).map((e) => e.innerText || e.type).filter((text) => text !== %q).join(' ')`,
			without))
	}
	if got := buttons(""); got != "search Not ended 1 Ended 0 All 1 Running 1 State Name Owner Image CPU Memory Created ↓ Ends in" {
		t.Errorf("a viewer's overview has %q", got)
	}
	// Of what is on a tab a viewer may use what only reads.
	for tab, page := range map[string]struct{ expression, reads string }{
		"":         {there(".facts"), "Copy"},
		"activity": {says("Nothing was done yet"), ""},
		"logs":     {says("printed nothing"), "checkbox"},
		"events":   {says("ready"), ""},
		"network":  {says("no egress sidecar"), ""},
		"terminal": {there(".facts"), "Copy"},
		"ports":    {there(".facts"), "Copy"},
	} {
		b.visit(t, "#/sandboxes/"+id+"/"+tab, page.expression)
		if got := buttons(page.reads); got != "Summary Activity Checkpoints Logs Events Network" {
			t.Errorf("a viewer's page %q has %q", tab, got)
		}
	}
	b.visit(t, "#/new", there(".bar"))
	if evaluate[bool](t, b, there("form.create")) {
		t.Error("a viewer is shown the form for a new sandbox")
	}

	b = console(t, s, s.URL, "alice-key-0123456789")
	b.until(t, says("There is no sandbox"))
	b.until(t, says("Live"))
	if evaluate[bool](t, b, there(".host")) {
		t.Error("a user is shown the load of the host")
	}
	b.visit(t, "#/new", there("form.create"))
	if evaluate[bool](t, b, there("#f-runtimeClass")) {
		t.Error("a service without runtime classes offers some")
	}
	b.visit(t, "#/sandboxes/"+id, says("FORBIDDEN"))
}

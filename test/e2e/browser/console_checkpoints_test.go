package browser_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/server/config"
	"sandbox.internal/test/e2e/conformance"
)

// rowOf is the row of a snapshot with a name.
func rowOf(name string) string {
	return fmt.Sprintf("[...document.querySelectorAll('.tree tbody tr')].find((e) => e.querySelector('bdi').innerText === %q)", name)
}

// labelled is the button with a label.
func labelled(label string) string { return fmt.Sprintf("[aria-label=%q]", label) }

const hostileName = `<img src=x onerror="window.hurt = 1">`

// TestConsoleCheckpoints takes snapshots of a sandbox in the page, goes back to one, makes forks
// and a sandbox from one, and deletes one. A snapshot of another client appears by itself.
func TestConsoleCheckpoints(t *testing.T) {
	t.Parallel()
	checker := axe(t)
	s := start(t, conformance.Plan{Keys: []config.Key{keyOf("watcher", "viewer")}, Server: "max_snapshots_mib = 2"})
	request := s.Idle()
	request.Metadata = lifecycle.Metadata{"name": "worker"}
	id := s.Running(t, request)
	box, at := s.Enter(t, id), "#/sandboxes/"+id+"/checkpoints"
	b := console(t, s, s.URL, conformance.AdminKey)
	b.visit(t, at, says("No snapshot was taken of this sandbox"))
	b.looked(t, checker, "checkpoints-none")

	box.Want(t, "echo good >/root/state", "")
	b.enter(t, "#snapshot-comment", "all is well")
	b.enter(t, "#snapshot-name", "before\r")
	b.until(t, says("The snapshot before is taken. The processes stood still for "))
	b.until(t, rowOf("before")+"?.innerText.includes('Ready')")
	conformance.Contains(t, evaluate[string](t, b, rowOf("before")+".innerText"), "all is well", " KiB", " ms")

	// A snapshot that another client takes appears by itself; its name is text.
	box.Want(t, "echo broken >/root/state", "")
	s.take(t, id, hostileName)
	b.until(t, rowOf(hostileName)+"?.innerText.includes('Ready')")
	if evaluate[bool](t, b, "'hurt' in window || "+there(".tree img")) {
		t.Error("the name of a snapshot became HTML")
	}
	if evaluate[bool](t, b, there(".tree [data-current=true]")) {
		t.Error("a snapshot is marked, but the files come from the image")
	}
	b.testChanges(t, checker)
	b.testRollback(t, checker, s, id)
	b.testFailedSnapshot(t, checker, s, id)
	b.testForks(t, checker, s, at)
	b.testBegin(t, checker, s, at)
	b.testViewer(t, s, at)
}

// take takes a snapshot as another client does.
func (s *service) take(t *testing.T, id, name string) {
	t.Helper()
	body := conformance.Encode(t, lifecycle.TakeSnapshotRequest{Name: &name})
	answer := s.Send(t, http.MethodPost, "/v1/sandboxes/"+id+"/snapshots", body, "Prefer", "wait=60")
	if answer.Status != http.StatusAccepted {
		t.Fatalf("take a snapshot: %s", answer)
	}
}

// change changes when a sandbox sleeps, as another client does.
func (s *service) change(t *testing.T, id, body string) {
	t.Helper()
	if answer := s.Send(t, http.MethodPatch, "/v1/sandboxes/"+id+"/lifecycle", body); answer.Status != http.StatusOK {
		t.Fatalf("change the lifecycle: %s", answer)
	}
}

// testChanges looks at what two snapshots have changed: one of them the image, the other one the
// snapshot before it and the image.
func (b *tab) testChanges(t *testing.T, checker string) {
	t.Helper()
	const files = "[...document.querySelectorAll('.changes tbody tr')].map((e) => e.innerText.replace(/\\s+/g, ' ').trim()).join()"
	b.click(t, labelled("Changes of before"))
	b.until(t, files+" === 'added /root/state 5 B'")
	if evaluate[bool](t, b, there("#since")) {
		t.Error("the first snapshot is compared with another one")
	}
	b.pressFirst(t, "Close")
	b.until(t, "!"+there("dialog"))
	b.click(t, labelled("Changes of "+hostileName))
	b.until(t, files+" === 'modified /root/state 7 B'")
	b.looked(t, checker, "checkpoints-changes")
	b.run(t, "const since = document.getElementById('since'); since.value = 'true'; since.dispatchEvent(new Event('change', { bubbles: true }))")
	b.until(t, files+" === 'added /root/state 7 B'")
	b.pressFirst(t, "Close")
	b.until(t, "!"+there("dialog"))
}

// testRollback goes back to the first of two snapshots; the next one is a branch beside the second.
func (b *tab) testRollback(t *testing.T, checker string, s *service, id string) {
	t.Helper()
	b.click(t, labelled("Roll back to before"))
	b.until(t, there("dialog[open]"))
	b.until(t, says("Every process in the sandbox ends"))
	b.accessible(t, checker, "roll back")
	b.settled(t, "dialog .danger", "document.querySelector('.tree [data-current=true] bdi')?.innerText === 'before'")
	b.until(t, says("The sandbox has the files of before."))
	b.until(t, "!"+there("dialog"))
	s.Enter(t, id).Want(t, "cat /root/state", "good\n") // its daemon has another port now
	b.enter(t, "#snapshot-name", "second try\r")
	b.until(t, rowOf("second try")+"?.innerText.includes('Ready')")
	// The older child branches off above the newer one.
	const names = "[...document.querySelectorAll('.tree bdi')].map((e) => e.innerText).join()"
	if got := evaluate[string](t, b, names); got != "before,"+hostileName+",second try" {
		t.Errorf("the snapshots are %s", got)
	}
	if !evaluate[bool](t, b, rowOf(hostileName)+".querySelector('.aside') !== null && "+rowOf("second try")+".querySelector('.up') !== null") {
		t.Error("the tree has no branch")
	}
	b.looked(t, checker, "checkpoints")
}

// testFailedSnapshot takes one that is larger than its owner may have.
func (b *tab) testFailedSnapshot(t *testing.T, checker string, s *service, id string) {
	t.Helper()
	box := s.Enter(t, id)
	box.Want(t, "head -c 4194304 /dev/urandom >/root/large", "")
	s.take(t, id, "large")
	b.until(t, rowOf("large")+"?.innerText.includes('SNAPSHOT_TOO_LARGE')")
	b.until(t, there(labelled("Roll back to large")+"[aria-disabled=true]"))
	b.looked(t, checker, "checkpoints-failed")
	b.show(t, look{"between", 760, 900, "light"})
	b.accessible(t, checker, "checkpoints-failed, between")
	b.picture(t, "checkpoints-failed-between")
	b.show(t, threeLooks[0])
	b.click(t, labelled("Delete the snapshot large"))
	b.settled(t, "dialog .danger", rowOf("large")+" === undefined")
	box.Want(t, "rm /root/large", "")
}

// testForks makes two forks, and goes to one.
func (b *tab) testForks(t *testing.T, checker string, s *service, at string) {
	t.Helper()
	b.pressFirst(t, "Fork…")
	b.until(t, there("dialog[open] #count"))
	b.run(t, "document.getElementById('count').value = 2")
	b.settled(t, "dialog .primary", "document.querySelectorAll('dialog li a').length === 2")
	b.looked(t, checker, "checkpoints-forks")
	fork := strings.TrimPrefix(evaluate[string](t, b, "new URL(document.querySelector('dialog li a').href).hash"), "#/sandboxes/")
	b.settled(t, "dialog li:first-child a", fmt.Sprintf("location.hash === '#/sandboxes/%s' && !%s", fork, there("dialog")))
	s.Await(t, fork, "Running")
	s.Enter(t, fork).Want(t, "cat /root/state", "good\n")
	b.visit(t, "#/sandboxes/"+fork+"/checkpoints", says("No snapshot was taken of this sandbox"))
	b.visit(t, at, there(".tree"))
}

// testBegin creates a sandbox from a snapshot, which shows where its files come from.
func (b *tab) testBegin(t *testing.T, checker string, s *service, at string) {
	t.Helper()
	b.click(t, labelled("New sandbox from before"))
	b.until(t, there("dialog[open] #begin-name"))
	b.accessible(t, checker, "begin")
	b.enter(t, "#begin-name", "again\r")
	b.until(t, fmt.Sprintf("/^#.sandboxes.[^/]+$/.test(location.hash) && %s", says("again")))
	begun := strings.TrimPrefix(evaluate[string](t, b, "location.hash"), "#/sandboxes/")
	s.Await(t, begun, "Running")
	s.Enter(t, begun).Want(t, "cat /root/state", "good\n")
	b.visit(t, "#/sandboxes/"+begun+"/checkpoints", there(".tree [data-current=true]"))
	b.until(t, says("taken of another sandbox"))
	b.looked(t, checker, "checkpoints-begun")
	b.unexpected(t, "404 (Not Found) "+s.URL+"/console/api/v1/snapshots/") // that of the fork
}

// testViewer: a viewer sees the snapshots and nothing to do with them. Where a service has none,
// the page has its message in place of them.
func (b *tab) testViewer(t *testing.T, s *service, at string) {
	t.Helper()
	viewer := console(t, s, s.URL, "watcher"+keySuffix)
	viewer.visit(t, at, rowOf("before")+" !== undefined")
	if evaluate[bool](t, viewer, there(".panel :is(button, input)")) {
		t.Error("a viewer is offered actions")
	}
	viewer.unexpected(t)

	b.run(t, `{
		const { fetch } = window;
		window.fetch = (path, options) => (!path.includes('/snapshots') ? fetch(path, options)
			: Promise.resolve(Response.json({ code: 'NOT_IMPLEMENTED', message: 'they take <b>another</b> engine' }, { status: 501 })));
	}`)
	b.visit(t, at, says("This service keeps no checkpoints: they take <b>another</b> engine"))
	if evaluate[bool](t, b, there(".panel :is(form, .tree)")) {
		t.Error("a service without snapshots is shown with actions")
	}
	b.unexpected(t)
}

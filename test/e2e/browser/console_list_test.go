package browser_test

import (
	"testing"

	"sandbox.internal/test/e2e/conformance"
)

// TestConsoleFormNamesFields: the field that an error of the service is about is marked, however
// the service writes its name.
func TestConsoleFormNamesFields(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	b := console(t, s, s.URL, conformance.AdminKey)
	b.visit(t, "#/new", there("form.create"))
	b.enter(t, "#f-uri", busyboxImage)
	b.run(t, "document.forms[0].cpu.value = '1m'")
	b.settled(t, "form .primary", says("resourceLimits.cpu"))
	b.until(t, there("#f-cpu[aria-invalid=true]"))
	b.run(t, "document.forms[0].cpu.value = '500m'; document.forms[0].memory.value = '1Mi'")
	b.settled(t, "form .primary", says("resourceLimits.memory"))
	b.until(t, there("#f-memory[aria-invalid=true]"))

	b.visit(t, "#/%", there("#search"))
}

// TestConsoleList: a name that cannot be seen still has a link, and the question whether to delete
// a sandbox stays although its row goes.
func TestConsoleList(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	request := s.Idle()
	request.Metadata = map[string]string{"name": " \u200b"}
	id := s.Running(t, request)
	b := console(t, s, s.URL, conformance.AdminKey)
	b.until(t, there("tbody tr")+" && "+there(".host meter")) // which moves the rows
	if text := evaluate[string](t, b, "document.querySelector('tbody th').innerText"); text != id[:8] {
		t.Errorf("the sandbox without a visible name is %q", text)
	}
	running := "[...document.querySelectorAll('.filters button')].find((e) => e.innerText.startsWith('Running'))"
	b.run(t, running+".click()")
	b.click(t, "tbody .danger")
	b.until(t, there("dialog[open]"))
	s.Delete(t, id)
	b.until(t, "!"+there("tbody tr"))
	if !evaluate[bool](t, b, there("dialog[open]")) {
		t.Error("the question has gone with the row")
	}
	b.click(t, "dialog [type=button]")
	b.until(t, "!"+there("dialog"))
}

package browser_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"sandbox.internal/server/config"
	"sandbox.internal/test/e2e/conformance"
)

// TestConsoleKeys: an administrator makes a key, whose secret is shown once and works, replaces the
// secret, and removes the key. No one else gets there.
func TestConsoleKeys(t *testing.T) {
	t.Parallel()
	checker := axe(t)
	s := start(t, conformance.Plan{Keys: []config.Key{keyOf("alice", "user")}})
	b := console(t, s, s.URL, conformance.AdminKey)
	b.visit(t, "#/keys", there("table.keys"))
	b.looked(t, checker, "keys")
	row := "[...document.querySelectorAll('.keys tbody tr')].find((e) => e.innerText.includes('ci'))"
	b.pressFirst(t, "New key")
	b.enter(t, "#key-name", "ci")
	b.accessible(t, checker, "new key")
	b.settled(t, "dialog .primary", there("#secret"))
	b.accessible(t, checker, "secret")
	status := func(secret string) int {
		return conformance.Fetch(t, s.URL+"/v1/sandboxes", "SERVICE-API-KEY", secret).Status
	}
	secret := evaluate[string](t, b, "document.getElementById('secret').innerText")
	if got := status(secret); got != http.StatusOK {
		t.Errorf("the secret of the page gives %d", got)
	}
	b.settled(t, "dialog .primary", "!"+there("dialog"))
	b.until(t, row+" !== undefined")
	if evaluate[bool](t, b, fmt.Sprintf("document.documentElement.outerHTML.includes(%q)", secret)) ||
		strings.Contains(b.stored(t), secret) {
		t.Error("the page keeps the secret")
	}

	b.settled(t, "[aria-label='Replace the secret of ci']", there("dialog #grace"))
	b.settled(t, "dialog .primary", there("#secret"))
	replaced := evaluate[string](t, b, "document.getElementById('secret').innerText")
	if before, now := status(secret), status(replaced); before != http.StatusUnauthorized || now != http.StatusOK {
		t.Errorf("after the replacement the old secret gives %d, the new one %d", before, now)
	}
	b.settled(t, "dialog .primary", "!"+there("dialog"))
	b.settled(t, "[aria-label='Remove ci']", there("dialog .danger"))
	b.settled(t, "dialog .danger", row+" === undefined")
	if got := status(replaced); got != http.StatusUnauthorized {
		t.Errorf("the secret of the removed key gives %d", got)
	}

	b = console(t, s, s.URL, "alice"+keySuffix)
	b.visit(t, "#/keys", there("#search"))
	if evaluate[bool](t, b, there(".bar nav")+" || "+there("table.keys")) {
		t.Error("a user is shown the pages of administrators")
	}
}

// TestConsoleImages: an administrator sees the images of the engine; what a registry refuses is
// shown.
func TestConsoleImages(t *testing.T) {
	t.Parallel()
	checker := axe(t)
	s := start(t, conformance.Plan{})
	b := console(t, s, s.URL, conformance.AdminKey)
	b.visit(t, "#/images", fmt.Sprintf("document.querySelector('table')?.innerText.includes(%q)", busyboxImage))
	b.looked(t, checker, "images")
	b.enter(t, "#uri", "127.0.0.1:1/none:1\r")
	b.until(t, there(".problem"))
	b.run(t, "document.querySelector('tbody .danger').click()")
	b.until(t, there("dialog .danger"))
	b.accessible(t, checker, "remove an image")
}

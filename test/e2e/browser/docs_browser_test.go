package browser_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/getkin/kin-openapi/openapi3"
	"sandbox.internal/test/e2e/conformance"
)

// described are the operationIds of a contract, by their tag.
func described(document *openapi3.T) map[string]string {
	operations := map[string]string{}
	for _, item := range document.Paths.Map() {
		for _, operation := range item.Operations() {
			operations[operation.OperationID] = operation.Tags[0]
		}
	}
	return operations
}

// TestDocsInABrowser opens every page in a real browser: each operation of the contract is shown,
// the console has no error, and no request leaves the service.
func TestDocsInABrowser(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	b := browse(t, s.URL)
	lifecycle, err := conformance.LifecycleContract()
	if err != nil {
		t.Fatal(err)
	}
	execd, err := conformance.ExecdContract()
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range []struct {
		path     string
		document *openapi3.T
		element  string // the element of an operation, from its tag and id
	}{
		{"/docs", lifecycle, "#operations-%s-%s"},
		{"/docs/execd", execd, "#operations-%s-%s"},
		{"/redoc", lifecycle, "[id='tag/%s/operation/%s']"},
		{"/redoc/execd", execd, "[id='tag/%s/operation/%s']"},
	} {
		t.Run(strings.ReplaceAll(page.path, "/", ""), func(t *testing.T) {
			b.open(t, page.path)
			for id, tag := range described(page.document) {
				b.until(t, fmt.Sprintf("document.querySelector(%q) !== null",
					fmt.Sprintf(page.element, tag, id)))
			}
			b.until(t, fmt.Sprintf("document.body.innerText.includes(%q)",
				page.document.Info.Title))
			b.picture(t, "page")
			b.unexpected(t)
			if got := evaluate[string](t, b,
				"document.querySelector('.bar a[aria-current]').innerText"); !strings.Contains(
				page.document.Info.Title, got[:5]) {
				t.Errorf("the bar says %q on the page of %q", got, page.document.Info.Title)
			}
		})
	}
}

// open goes to a page of the service, and returns when it shows operations.
func (b *tab) open(t *testing.T, path string) {
	t.Helper()
	b.do(t, "open "+path, chromedp.Navigate(b.home+path))
	b.until(t,
		"document.readyState === 'complete' && document.querySelector('[id^=operations-], [id*=\"/operation/\"]') !== null")
}

// TestTryItOut uses Swagger UI as a person does: without the key 401, with it 200, and the key is
// kept nowhere.
func TestTryItOut(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	id := s.Running(t, s.Idle())
	b := browse(t, s.URL)

	const list = "#operations-Sandboxes-listSandboxes"
	b.open(t, "/docs")
	b.click(t, list+" .opblock-summary-control")
	if got := b.execute(t, list); got != http.StatusUnauthorized {
		t.Errorf("without a key: %d", got)
	}
	b.authorise(t, conformance.AdminKey)
	if got := b.execute(t, list); got != http.StatusOK {
		t.Errorf("with the key: %d", got)
	}
	b.picture(t, "answer")
	body := evaluate[string](t, b,
		fmt.Sprintf(
			"document.querySelector('%s .live-responses-table .microlight, %s .live-responses-table code').innerText", list, list))
	var answer struct{ Items []struct{ ID string } }
	if err := json.Unmarshal([]byte(body), &answer); err != nil || len(answer.Items) != 1 ||
		answer.Items[0].ID != id {
		t.Errorf("the page shows %q (%v), not the list with %s", body, err, id)
	}
	if got := b.stored(t); got != `[{},{},""]` || strings.Contains(got, conformance.AdminKey) {
		t.Errorf("the page has stored %s", got)
	}
	b.open(t, "/docs")
	b.click(t, list+" .opblock-summary-control")
	if got := b.execute(t, list); got != http.StatusUnauthorized {
		t.Errorf("after the page was loaded again: %d", got)
	}
	// Chromium itself reports the two refused requests.
	b.unexpected(t, "401 (Unauthorized)")
}

// TestTryExecd sends a request into a sandbox: the page sends it through the service, and needs the
// sandbox's id and the key.
func TestTryExecd(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	id := s.Running(t, s.Idle())
	b := browse(t, s.URL)

	const metrics = "#operations-Metrics-getMetrics"
	b.open(t, "/docs/execd")
	b.until(t, "document.querySelector('.servers input') !== null")
	// what is typed replaces what is selected
	evaluate[chromedp.Void](t, b, "document.querySelector('.servers input').select()")
	b.enter(t, ".servers input", id)
	b.authorise(t, conformance.AdminKey)
	b.picture(t, "servers")
	b.click(t, metrics+" .opblock-summary-control")
	got := b.execute(t, metrics)
	b.picture(t, "answer")
	path := "/v1/sandboxes/" + id + "/proxy/44772/metrics"
	request := b.sent(path)
	if request == nil {
		t.Fatalf("nothing was sent to %s", path)
	}
	if headers := headersOf(request); headers["service-api-key"] != conformance.AdminKey {
		t.Errorf("the request's headers are %q", headers)
	}
	if got != http.StatusOK {
		t.Errorf("the answer is %d", got)
	}
	if got := b.stored(t); got != `[{},{},""]` {
		t.Errorf("the page has stored %s", got)
	}
	b.unexpected(t)
}

// authorise types the key into the dialog.
func (b *tab) authorise(t *testing.T, key string) {
	t.Helper()
	b.click(t, ".auth-wrapper .btn.authorize")
	b.enter(t, ".modal-ux .auth-container input", key)
	b.picture(t, "authorize")
	b.click(t, ".modal-ux .auth-container .btn.authorize")
	b.click(t, ".modal-ux .btn-done")
}

// execute presses the button of an open operation and returns the status that the page then shows.
func (b *tab) execute(t *testing.T, operation string) int {
	t.Helper()
	status := fmt.Sprintf(
		"document.querySelector('%s .live-responses-table tbody .response-col_status')", operation)
	if evaluate[bool](t, b,
		fmt.Sprintf("document.querySelector('%s .btn-clear') !== null", operation)) {
		b.click(t, operation+" .btn-clear")
		b.until(t, status+" === null")
	}
	b.click(t, operation+" .btn.execute")
	b.until(t, fmt.Sprintf("/^\\d/.test(%s?.innerText)", status))
	return evaluate[int](t, b, fmt.Sprintf("parseInt(%s.innerText)", status))
}

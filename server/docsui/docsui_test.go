package docsui_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"go.uber.org/goleak"

	"sandbox.internal/openapi"
	"sandbox.internal/openapi/document"
	"sandbox.internal/server/docsui"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func pages(t *testing.T) *docsui.Pages {
	t.Helper()
	p, err := docsui.New()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// ask sends a request; headers are pairs of name and value.
func ask(t *testing.T, p *docsui.Pages, method, target string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	request := httptest.NewRequest(method, target, nil)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	answer := httptest.NewRecorder()
	p.ServeHTTP(answer, request)
	return answer
}

func TestPaths(t *testing.T) {
	got := pages(t).Paths()
	for _, want := range []string{
		"/docs", "/docs/lifecycle", "/docs/execd", "/redoc", "/redoc/lifecycle", "/redoc/execd",
		"/llms.txt", "/openapi.yaml", "/openapi/lifecycle.yaml", "/openapi/execd.yaml",
		"/docs/assets/redoc.LICENSE.txt", "/docs/assets/swagger-ui.LICENSE.txt", "/docs/assets/swagger-ui.NOTICE.txt",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("%s is missing among %q", want, got)
		}
	}
	if answer := ask(t, pages(t), http.MethodGet, "/docs/nothing"); answer.Code != http.StatusNotFound {
		t.Errorf("an unknown path: %d", answer.Code)
	}
}

func TestEveryAnswer(t *testing.T) {
	p := pages(t)
	for _, path := range p.Paths() {
		answer := ask(t, p, http.MethodGet, path)
		header, tag := answer.Header(), answer.Header().Get("ETag")
		if answer.Code != http.StatusOK || answer.Body.Len() == 0 {
			t.Errorf("%s: %d with %d bytes", path, answer.Code, answer.Body.Len())
		}
		for name, want := range map[string]string{
			"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
			"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
			"Cache-Control": "no-cache", "Content-Encoding": "",
		} {
			if got := header.Get(name); got != want {
				t.Errorf("%s: %s is %q, want %q", path, name, got, want)
			}
		}
		for _, part := range []string{"default-src 'none'", "script-src 'self';", "connect-src 'self'", "frame-ancestors 'none'"} {
			if !strings.Contains(header.Get("Content-Security-Policy"), part) {
				t.Errorf("%s: the policy lacks %q", path, part)
			}
		}
		if header.Get("Content-Type") == "" || tag == "" {
			t.Errorf("%s: Content-Type %q, ETag %q", path, header.Get("Content-Type"), tag)
		}
		if again := ask(t, p, http.MethodGet, path, "If-None-Match", tag); again.Code != http.StatusNotModified || again.Body.Len() > 0 {
			t.Errorf("%s asked again: %d with %d bytes", path, again.Code, again.Body.Len())
		}
		if again := ask(t, p, http.MethodGet, path, "If-None-Match", `"older"`); again.Code != http.StatusOK {
			t.Errorf("%s with an older tag: %d", path, again.Code)
		}
		versioned := path + "?v=" + strings.Trim(tag, `"`)
		if got := ask(t, p, http.MethodHead, versioned).Header().Get("Cache-Control"); !strings.Contains(got, "immutable") {
			t.Errorf("%s: Cache-Control is %q", versioned, got)
		}
	}
}

func TestCompression(t *testing.T) {
	p := pages(t)
	const script = "/docs/assets/swagger-ui-bundle.js"
	plain := ask(t, p, http.MethodGet, script)
	for accepted, packed := range map[string]bool{
		"gzip": true, "deflate, gzip;q=0.5, br": true, "GZIP": true, "gzip; q=1": true,
		"": false, "br": false, "gzip;q=0": false, "gzip; q=0.0": false, "identity": false,
	} {
		answer := ask(t, p, http.MethodGet, script, "Accept-Encoding", accepted)
		if answer.Header().Get("Vary") != "Accept-Encoding" {
			t.Errorf("Vary is %q", answer.Header().Get("Vary"))
		}
		if got := answer.Header().Get("Content-Encoding") == "gzip"; got != packed {
			t.Errorf("Accept-Encoding %q: packed is %t", accepted, got)
		}
		if same := answer.Header().Get("ETag") == plain.Header().Get("ETag"); same == packed {
			t.Errorf("Accept-Encoding %q: packed and plain bytes must have different tags", accepted)
		}
		body := answer.Body.Bytes()
		if packed {
			reader, err := gzip.NewReader(answer.Body)
			if err != nil {
				t.Fatal(err)
			}
			if body, err = io.ReadAll(reader); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(body, plain.Body.Bytes()) {
			t.Errorf("Accept-Encoding %q: the content is another one", accepted)
		}
	}
}

// TestPagesStandAlone holds every reference of a page to what is served.
func TestPagesStandAlone(t *testing.T) {
	p := pages(t)
	references := regexp.MustCompile(`(?:href|src|data-source|data-try)="([^"]*)"`)
	for _, path := range p.Paths() {
		answer := ask(t, p, http.MethodGet, path)
		if !strings.HasPrefix(answer.Header().Get("Content-Type"), "text/html") {
			continue
		}
		html := answer.Body.String()
		found := references.FindAllStringSubmatch(html, -1)
		if len(found) < 8 {
			t.Errorf("%s has only %d references", path, len(found))
		}
		for _, reference := range found {
			if reference[1] == "data:," {
				continue
			}
			got := ask(t, p, http.MethodGet, reference[1])
			if got.Code != http.StatusOK {
				t.Errorf("%s refers to %s: %d", path, reference[1], got.Code)
			}
			if strings.Contains(reference[1], "?v=") && !strings.Contains(got.Header().Get("Cache-Control"), "immutable") {
				t.Errorf("%s refers to %s, which is not the version that is served", path, reference[1])
			}
		}
		_, without, _ := strings.Cut(html, "<noscript>")
		if without, _, _ = strings.Cut(without, "</noscript>"); !strings.Contains(without, `<a href="/openapi/`) {
			t.Errorf("%s has no way to the contract for readers without scripts: %q", path, without)
		}
	}
}

func TestContractsAreServedAsWritten(t *testing.T) {
	p := pages(t)
	for path, want := range map[string][]byte{
		"/openapi.yaml": openapi.Lifecycle(), "/openapi/lifecycle.yaml": openapi.Lifecycle(), "/openapi/execd.yaml": openapi.Execd(),
	} {
		answer := ask(t, p, http.MethodGet, path)
		if !bytes.Equal(answer.Body.Bytes(), want) || answer.Header().Get("Content-Type") != "application/yaml" {
			t.Errorf("%s is not the contract, or is %q", path, answer.Header().Get("Content-Type"))
		}
	}
}

// loadForTrying loads what Swagger UI gets and checks its parameters. These are put back as they
// were written, for a comparison.
func loadForTrying(t *testing.T, path string, written *openapi3.T) *openapi3.T {
	t.Helper()
	tried, err := openapi3.NewLoader().LoadFromData(ask(t, pages(t), http.MethodGet, path).Body.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if err := tried.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	check := func(got, want openapi3.Parameters) {
		if len(got) != len(want) {
			t.Fatalf("%d parameters instead of %d", len(got), len(want))
		}
		for i := range got {
			if got[i].Value.Example != nil || got[i].Value.Schema.Value.Example != nil {
				t.Errorf("parameter %s has an example, which Swagger UI would send", got[i].Value.Name)
			}
			if got[i].Value.Name != want[i].Value.Name || !reflect.DeepEqual(got[i].Value.Schema.Value.Type, want[i].Value.Schema.Value.Type) {
				t.Errorf("parameter %s instead of %s", got[i].Value.Name, want[i].Value.Name)
			}
		}
	}
	for path, item := range tried.Paths.Map() {
		check(item.Parameters, written.Paths.Value(path).Parameters)
		item.Parameters = written.Paths.Value(path).Parameters
		for method, operation := range item.Operations() {
			check(operation.Parameters, written.Paths.Value(path).GetOperation(method).Parameters)
			operation.Parameters = written.Paths.Value(path).GetOperation(method).Parameters
		}
	}
	tried.Components.Parameters = written.Components.Parameters
	return tried
}

func TestLifecycleForTrying(t *testing.T) {
	written, err := document.LoadLifecycle()
	if err != nil {
		t.Fatal(err)
	}
	same(t, loadForTrying(t, "/docs/lifecycle.yaml", written), written)
}

// TestExecdForTrying proves that only the way to the API differs from the contract.
func TestExecdForTrying(t *testing.T) {
	written, err := document.LoadExecd()
	if err != nil {
		t.Fatal(err)
	}
	lifecycle, err := document.LoadLifecycle()
	if err != nil {
		t.Fatal(err)
	}
	tried := loadForTrying(t, "/docs/execd.yaml", written)
	if len(tried.Servers) != 1 || tried.Servers[0].URL != "/v1/sandboxes/{sandboxId}/proxy/44772" {
		t.Errorf("servers %v", tried.Servers)
	}
	schemes := tried.Components.SecuritySchemes
	if got, want := schemes["apiKey"].Value.Name, lifecycle.Components.SecuritySchemes["apiKey"].Value.Name; got != want {
		t.Errorf("the service's key is in %s, want %s", got, want)
	}
	if len(schemes) != 1 {
		t.Errorf("%d kinds of keys; the service adds the token of the sandbox", len(schemes))
	}
	tried.Servers, tried.Security, tried.Components.SecuritySchemes = written.Servers, written.Security, written.Components.SecuritySchemes
	same(t, tried, written)
}

// same compares all that two documents say.
func same(t *testing.T, got, want *openapi3.T) {
	t.Helper()
	texts := [2][]byte{}
	for i, document := range []*openapi3.T{got, want} {
		var err error
		if texts[i], err = json.Marshal(document); err != nil {
			t.Fatal(err)
		}
	}
	if len(texts[0]) < 10_000 || !bytes.Equal(texts[0], texts[1]) {
		t.Errorf("more differs from the contract: %d bytes instead of %d", len(texts[0]), len(texts[1]))
	}
}

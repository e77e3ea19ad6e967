package servetest_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"go.uber.org/goleak"

	"sandbox.internal/openapi/serve/servetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const contract = `
openapi: 3.0.3
info: {title: t, version: "1"}
security: [{key: []}]
components:
  securitySchemes:
    key: {type: apiKey, in: header, name: X-Test-Key}
paths:
  /health:
    get: {operationId: getHealth, security: [], responses: {"200": {description: ok}}}
  /things/{thingId}:
    parameters: [{name: thingId, in: path, required: true, schema: {type: string}}]
    get: {operationId: getThing, responses: {"200": {description: ok}}}
    put: {operationId: putThing, responses: {"200": {description: ok}}}
`

// recorder collects failures instead of failing.
type recorder struct{ failures []string }

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func TestEveryOperationNeedsKey(t *testing.T) {
	doc, err := openapi3.NewLoader().LoadFromData([]byte(contract))
	if err != nil {
		t.Fatal(err)
	}
	refuse := func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(
			http.StatusUnauthorized)
	}
	cases := map[string]struct {
		// accepts reports whether the service accepts a request pass.
		accepts func(*http.Request) bool
		open    []string
		want    []string
	}{
		"guarded": {func(r *http.Request) bool { return r.URL.Path == "/health" },
			[]string{"getHealth"}, nil},
		"one skipped": {func(r *http.Request) bool {
			return r.Method == "PUT" ||
				r.URL.Path == "/health"
		}, []string{"getHealth"},
			[]string{"putThing (PUT /things/{thingId}) with key \"\"",
				"putThing (PUT /things/{thingId}) with key \"wrong\""}},
		"any key": {func(r *http.Request) bool {
			return r.URL.Path == "/health" ||
				r.Header.Get("X-Test-Key") != ""
		}, []string{"getHealth"},
			[]string{"getThing (GET /things/{thingId}) with key \"wrong\"",
				"putThing (PUT /things/{thingId}) with key \"wrong\""}},
		"probe shut": {func(*http.Request) bool { return false }, []string{"getHealth"},
			[]string{"getHealth (GET /health) with key \"\"",
				"getHealth (GET /health) with key \"wrong\""}},
		"not a name": {func(r *http.Request) bool { return r.URL.Path == "/health" },
			[]string{"getHealth", "ping"},
			[]string{`open operation "ping" is not in the document`}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(
				http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if strings.Contains(r.URL.Path, "{") {
						t.Errorf("path %s has a placeholder", r.URL.Path)
					}
					if !c.accepts(r) {
						refuse(w, r)
					}
				}))
			defer server.Close()
			got := &recorder{}
			servetest.EveryOperationNeedsKey(got, doc, server.URL, c.open...)
			if len(got.failures) != len(c.want) {
				t.Fatalf("failures %q, want %q", got.failures, c.want)
			}
			for _, want := range c.want {
				if !slices.ContainsFunc(got.failures,
					func(f string) bool { return strings.HasPrefix(f, want) }) {
					t.Errorf("failures %q lack %q", got.failures, want)
				}
			}
		})
	}
}

func TestEveryOperationRefusesUnknownParameters(t *testing.T) {
	doc, err := openapi3.NewLoader().LoadFromData([]byte(contract))
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		answer func(http.ResponseWriter, *http.Request)
		want   []string
	}{
		"refused": {func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, r.URL.RawQuery)
		}, nil},
		"one ignores it": {func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPut {
				w.WriteHeader(http.StatusBadRequest)
			}
			fmt.Fprint(w, r.URL.RawQuery)
		}, []string{"putThing (PUT /things/{thingId})"}},
		"not named": {func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
		}, []string{"getHealth (GET /health)", "getThing (GET /things/{thingId})",
			"putThing (PUT /things/{thingId})"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(
				http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Header.Get("X-Test-Key") != "right" {
						t.Errorf("%s %s comes without the key", r.Method, r.URL.Path)
					}
					c.answer(w, r)
				}))
			defer server.Close()
			got := &recorder{}
			servetest.EveryOperationRefusesUnknownParameters(got, doc, server.URL,
				http.Header{"X-Test-Key": {"right"}})
			if len(got.failures) != len(c.want) {
				t.Fatalf("failures %q, want %q", got.failures, c.want)
			}
			for _, want := range c.want {
				if !slices.ContainsFunc(got.failures,
					func(f string) bool { return strings.HasPrefix(f, want) }) {
					t.Errorf("failures %q lack %q", got.failures, want)
				}
			}
		})
	}
}

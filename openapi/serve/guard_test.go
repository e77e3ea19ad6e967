package serve_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/labstack/echo/v4"

	contract "sandbox.internal/openapi/document"
	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/servetest"
)

func TestEveryOperationNeedsKey(t *testing.T) {
	s := start(t, nil, setup{})
	servetest.EveryOperationNeedsKey(t, document(t), s.url, "getHealth")
}

func TestNewRefusesDocumentsItCannotEnforce(t *testing.T) {
	cases := map[string]struct {
		spoil func(*openapi3.T)
		want  string
	}{
		"newer version": {spoil: func(d *openapi3.T) { d.OpenAPI = "3.1.0" }, want: "3.1.0"},
		"no id": {spoil: func(d *openapi3.T) {
			d.Paths.Find(
				"/v1/watch").Get.OperationID = ""
		}, want: "GET /v1/watch has no operationId"},
		"id used twice": {spoil: func(d *openapi3.T) {
			d.Paths.Find(
				"/v1/watch").Get.OperationID = "getHealth"
		}, want: "getHealth is used twice"},
		"new keyword": {spoil: func(d *openapi3.T) { d.Components.Schemas["Widget"].Value.MinProps = 1 }, want: "minProperties is not checked"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			doc := document(t)
			c.spoil(doc)
			_, err := contract.Rules(doc)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
	if _, err := serve.New(serve.Options{}); err == nil {
		t.Error("no rules are accepted")
	}
	_, err := serve.New(serve.Options{Rules: rulesOf(t, document(t)), Quiet: []string{"ping"}})
	if want := `"ping" is not in the document`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want one with %q", err, want)
	}
}

// A document that forgot its global security must not open everything.
func TestDocumentWithoutSecurityIsClosed(t *testing.T) {
	s := start(t, nil, setup{options: func(o *serve.Options) {
		doc := document(t)
		doc.Security = nil
		o.Rules = rulesOf(t, doc)
	}})
	if got := s.request("GET", "/v1/widgets", "",
		keyHeader+":"); got.StatusCode != http.StatusUnauthorized {
		t.Errorf("status %d without a key, want 401", got.StatusCode)
	}
}

func TestEveryOperationRefusesUnknownParameters(t *testing.T) {
	s := start(t, nil, setup{})
	header := http.Header{}
	header.Set(keyHeader, key)
	servetest.EveryOperationRefusesUnknownParameters(t, document(t), s.url, header)
}

func TestUnauthorized(t *testing.T) {
	s := start(t, nil, setup{})
	cases := map[string]struct{ header, want string }{
		"missing": {keyHeader + ":", "header X-Test-Key: is required"},
		"wrong":   {keyHeader + ": open sesam", "header X-Test-Key: is not valid"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			// The key is checked first: the body's faults are not reported.
			got := s.request("POST", "/v1/widgets", `{]`, c.header)
			code, message := got.problem(t)
			if got.StatusCode != 401 || code != "UNAUTHORIZED" || message != c.want {
				t.Errorf("%d %s %q, want 401 UNAUTHORIZED %q", got.StatusCode, code, message,
					c.want)
			}
			if challenge := got.Header.Get("WWW-Authenticate"); challenge != `ApiKey header="X-Test-Key"` {
				t.Errorf("WWW-Authenticate %q", challenge)
			}
		})
	}
}

func TestNoKeyConfiguredOpensEverything(t *testing.T) {
	for name, authenticate := range map[string]func(*http.Request) (any, error){
		"nil": nil, "empty secret": serve.HeaderSecret(keyHeader, ""),
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, nil,
				setup{options: func(o *serve.Options) { o.Authenticate = authenticate }})
			if got := s.request("GET", "/v1/widgets", "",
				keyHeader+":"); got.StatusCode != http.StatusNoContent {
				t.Errorf("status %d, want 204", got.StatusCode)
			}
		})
	}
}

func TestPrincipalReachesTheHandler(t *testing.T) {
	type user struct{ name string }
	answerWithName := func(c echo.Context) error {
		who, _ := serve.Principal(c.Request().Context()).(user)
		return c.String(http.StatusOK, who.name)
	}
	s := start(t, handlers{"getWidget": answerWithName, "getHealth": answerWithName}, setup{
		options: func(o *serve.Options) {
			o.Authenticate = func(r *http.Request) (any, error) {
				if r.Header.Get(keyHeader) == "reader" {
					return nil, serve.Forbidden("key reader: role viewer may not do this")
				}
				return user{"ada"}, nil
			}
		},
		routes: func(s *serve.Server) { s.Echo().Any("/proxy/*", answerWithName, s.Authenticated) },
	})
	for path, want := range map[string]string{"/v1/widgets/w1": "ada", "/proxy/80/index": "ada",
		"/health": ""} {
		if got := s.request("GET", path, ""); got.body != want {
			t.Errorf("%s: principal %q, want %q", path, got.body, want)
		}
	}
	for _, path := range []string{"/v1/widgets/w1", "/proxy/80/"} {
		got := s.request("GET", path, "", keyHeader+": reader")
		if code, _ := got.problem(t); got.StatusCode != 403 || code != "FORBIDDEN" {
			t.Errorf("%s: %d %s, want 403 FORBIDDEN", path, got.StatusCode, code)
		}
	}
}

func TestInvalidParameters(t *testing.T) {
	reached := func(echo.Context) error {
		t.Error("the handler was reached")
		return nil
	}
	s := start(t, handlers{"listWidgets": reached, "deleteWidget": reached, "getWidget": reached,
		"getPart": reached}, setup{})
	cases := map[string]struct{ method, path, header, want string }{
		"below minimum": {"GET", "/v1/widgets?page=0", "",
			"query parameter page: number must be at least 1"},
		"wrong type": {"GET", "/v1/widgets?page=two", "",
			"query parameter page: value must be an integer"},
		"fraction": {"GET", "/v1/widgets?page=1.5", "",
			"query parameter page: value must be an integer"},
		"too large": {"GET", "/v1/widgets?page=99999999999999999999", "",
			"query parameter page: number is too large"},
		"not a boolean": {"GET", "/v1/widgets?all=maybe", "",
			"query parameter all: value must be a boolean"},
		"empty": {"GET", "/v1/widgets?page=", "",
			"query parameter page: must not be empty"},
		"repeated": {"GET", "/v1/widgets?page=1&page=0", "",
			"query parameter page: must be given only once"},
		"item of an array": {"GET", "/v1/widgets?state=ok&state=x", "",
			"query parameter state/1: minimum string length is 2"},
		"broken escape": {"GET", "/v1/widgets?filter=%zz", "",
			`query: invalid URL escape "%zz"`},
		"broken unused": {"GET", "/v1/widgets?other=%2", "",
			`query: invalid URL escape "%2"`},
		"unknown": {"GET", "/v1/widgets?page=1&offset=2", "",
			"query parameter offset: unknown parameter; this operation has state, page, filter, all"},
		"unknown, several": {"GET", "/v1/widgets?z=1&b=2&c=3", "",
			"query parameter b: unknown parameter; this operation has state, page, filter, all"},
		"unknown, in other letters": {"GET", "/v1/widgets?Page=1", "",
			"query parameter Page: unknown parameter; this operation has state, page, filter, all"},
		"unknown, of no query": {"GET", "/v1/widgets/w1?X-Trace=a", "",
			"query parameter X-Trace: unknown parameter; this operation has none"},
		"unknown, without a name": {"GET", "/v1/widgets/w1?=1", "",
			"query parameter : unknown parameter; this operation has none"},
		"unknown, name of a path parameter": {"GET", "/v1/widgets/w1?widgetId=w2", "",
			"query parameter widgetId: unknown parameter; this operation has none"},
		"broken, of no query": {"GET", "/v1/widgets/w1?a;b", "",
			"query: invalid semicolon separator in query"},
		"required": {"DELETE", "/v1/widgets/w1", "",
			"query parameter force: is required"},
		"path of the item": {"GET", "/v1/widgets/0123456789abc", "",
			"path parameter widgetId: maximum string length is 12"},
		"path, wrong type": {"GET", "/v1/widgets/w1/parts/first", "",
			"path parameter number: value must be an integer"},
		"path, below minimum": {"GET", "/v1/widgets/w1/parts/0", "",
			"path parameter number: number must be at least 1"},
		"header": {"GET", "/v1/widgets", "X-Trace: abcd",
			"header X-Trace: maximum string length is 3"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := s.request(c.method, c.path, "", c.header)
			code, message := got.problem(t)
			if got.StatusCode != 400 || code != "INVALID_REQUEST_BODY" || message != c.want {
				t.Errorf("%d %s %q, want 400 INVALID_REQUEST_BODY %q", got.StatusCode, code,
					message, c.want)
			}
		})
	}
}

func TestRepeatedHeader(t *testing.T) {
	s := start(t, nil, setup{})
	r, _ := http.NewRequestWithContext(t.Context(), "GET", s.url+"/v1/widgets", nil)
	r.Header = http.Header{keyHeader: {key}, "X-Trace": {"a", "b"}}
	if _, message := s.do(r).problem(t); message != "header X-Trace: must be given only once" {
		t.Error(message)
	}
}

// Defaults of the document never appear in what the handler gets: it could not distinguish
// them from what the client sent, and they would be bound in some requests only.
func TestDefaultsAreLeftToTheService(t *testing.T) {
	s := start(t, handlers{"listWidgets": func(c echo.Context) error {
		return c.String(http.StatusOK, c.Request().URL.RawQuery+"|"+c.QueryParam("page"))
	}}, setup{})
	for query, want := range map[string]string{"": "|",
		"?state=ok&state=b,c": "state=ok&state=b,c|", "?page=3": "page=3|3"} {
		if got := s.request("GET", "/v1/widgets"+query, ""); got.body != want {
			t.Errorf("%q: the handler saw %q, want %q", query, got.body, want)
		}
	}
}

func TestEscapedPathIsValidatedDecoded(t *testing.T) {
	s := start(t, nil, setup{})
	// 12 characters, 36 in their escaped form.
	if got := s.request("GET", "/v1/widgets/"+strings.Repeat("%2F", 12),
		""); got.StatusCode != http.StatusNoContent {
		t.Errorf("status %d %s, want 204", got.StatusCode, got.body)
	}
	if got := s.request("GET", "/v1/widgets/"+strings.Repeat("%2F", 13),
		""); got.StatusCode != http.StatusBadRequest {
		t.Errorf("status %d, want 400", got.StatusCode)
	}
}

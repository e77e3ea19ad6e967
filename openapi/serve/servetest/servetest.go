// Package servetest checks services that are built on package serve.
package servetest

import (
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"

	"sandbox.internal/test/wait"
)

// T is the part of testing.TB that the checks need.
type T interface {
	Helper()
	Errorf(format string, args ...any)
}

var pathParameter = regexp.MustCompile(`\{[^}]*\}`)

// EveryOperationNeedsKey sends every operation of doc to the service at baseURL,
// first without a key and then with a wrong one. Each must be refused with 401, but
// for the operations named in open, which must not be. It finds guards that were
// silently skipped and operations that were opened by mistake.
func EveryOperationNeedsKey(t T, doc *openapi3.T, baseURL string, open ...string) {
	t.Helper()
	client := wait.Client()
	for _, name := range open {
		if !declares(doc, name) {
			t.Errorf("open operation %q is not in the document", name)
		}
	}
	for path, item := range doc.Paths.Map() {
		for method, operation := range item.Operations() {
			wantOpen := slices.Contains(open, operation.OperationID)
			for _, key := range []string{"", "wrong"} {
				status, _, err := send(client, method, baseURL+path, wrongKeys(doc, key))
				switch {
				case err != nil:
					t.Errorf("%s: %v", operation.OperationID, err)
				case !wantOpen && status != http.StatusUnauthorized:
					t.Errorf("%s (%s %s) with key %q: status %d, want 401", operation.OperationID,
						method, path, key, status)
				case wantOpen && status == http.StatusUnauthorized:
					t.Errorf("%s (%s %s) with key %q: status 401, want it open",
						operation.OperationID, method, path, key)
				}
			}
		}
	}
}

// EveryOperationRefusesUnknownParameters sends every operation of doc to the service at baseURL,
// with the header, which carries a key that may do everything, and with a query parameter that no
// operation has. Each must refuse it with 400 and name it.
func EveryOperationRefusesUnknownParameters(t T, doc *openapi3.T, baseURL string,
	header http.Header) {
	t.Helper()
	const name = "no-such-parameter"
	client := wait.Client()
	for path, item := range doc.Paths.Map() {
		for method, operation := range item.Operations() {
			status, body, err := send(client, method, baseURL+path+"?"+name+"=1", header.Clone())
			switch {
			case err != nil:
				t.Errorf("%s: %v", operation.OperationID, err)
			case status != http.StatusBadRequest || !strings.Contains(body, name):
				t.Errorf("%s (%s %s) with an unknown query parameter: %d %s, want 400 and its name",
					operation.OperationID, method, path, status, body)
			}
		}
	}
}

func declares(doc *openapi3.T, operationID string) bool {
	for _, item := range doc.Paths.Map() {
		for _, operation := range item.Operations() {
			if operation.OperationID == operationID {
				return true
			}
		}
	}
	return false
}

// wrongKeys is a header with value in every place where the document expects a key.
func wrongKeys(doc *openapi3.T, value string) http.Header {
	header := http.Header{}
	if value == "" || doc.Components == nil {
		return header
	}
	for _, ref := range doc.Components.SecuritySchemes {
		if ref.Value.In == openapi3.ParameterInHeader {
			header.Set(ref.Value.Name, value)
		}
	}
	return header
}

// send does not follow the contract: what is tested is checked before anything else. The body that
// it returns is bounded.
func send(client *http.Client, method, url string, header http.Header) (int, string, error) {
	request, err := http.NewRequest(method, pathParameter.ReplaceAllString(url, "x"),
		strings.NewReader(`{}`))
	if err != nil {
		return 0, "", err
	}
	request.Header = header
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(response.Body, 4<<10))
	return response.StatusCode, string(body), nil
}

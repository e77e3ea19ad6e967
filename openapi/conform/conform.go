// Package conform is support for tests: it holds a running service to its contract.
//
// A [Transport] goes into the http.Client of a test. Every response to that client is compared with
// the contract, and a difference fails the test: a status, a content type, a header, a value, a
// field or the code of an error that the contract does not have. [Routes] compares the routes of a
// service with the contract.
package conform

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
)

const (
	// jsonType is the one media type whose bodies are read and checked.
	jsonType = "application/json"
	// retryAfter is a header that clients act on, so that a contract must declare it. Others may be
	// any server's.
	retryAfter = "Retry-After"
)

// TB is the part of testing.TB that a Transport reports to.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Transport is an http.RoundTripper that checks every answer against a contract. It
// may be used by several goroutines at once.
type Transport struct {
	doc     *openapi3.T
	base    http.RoundTripper
	t       TB
	router  routers.Router
	outside paths

	mu   sync.Mutex
	seen map[string]bool
}

// New returns a Transport that sends requests through base, http.DefaultTransport when
// it is nil, and reports every answer that doc does not allow to t.
//
// Requests to the outside paths are passed on unchecked: an entry that ends in a slash
// stands for everything below it, any other entry for itself. A request to a path that
// is neither in the contract nor outside is reported too.
func New(doc *openapi3.T, base http.RoundTripper, t TB, outside ...string) *Transport {
	t.Helper()
	if base == nil {
		base = http.DefaultTransport
	}
	// A test's server listens wherever it can, so the addresses in the contract
	// must not take part in finding the operation.
	anywhere := *doc
	anywhere.Servers = nil
	router, err := gorillamux.NewRouter(&anywhere)
	if err != nil {
		t.Fatalf("conform: the contract has no usable paths: %v", err)
	}
	return &Transport{
		doc: doc, base: base, t: t, router: router,
		outside: outside, seen: map[string]bool{},
	}
}

// RoundTrip implements http.RoundTripper. A JSON body is read completely, checked and
// put back; every other body is left alone, so that a stream still arrives as it is
// written.
func (c *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	c.t.Helper()
	if c.outside.cover(req.URL.Path) {
		return c.base.RoundTrip(req)
	}
	route, _, err := c.router.FindRoute(req)
	if err != nil {
		c.t.Errorf("conform: %s %s is not in the contract: %v", req.Method, req.URL.Path, err)
		return c.base.RoundTrip(req)
	}
	resp, err := c.base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	pair := fmt.Sprintf("%s %d", route.Operation.OperationID, resp.StatusCode)
	c.mu.Lock()
	c.seen[pair] = true
	c.mu.Unlock()
	mismatch, err := Check(route.Operation, resp)
	if err != nil {
		// An answer that breaks off is the caller's news and no breach of the contract.
		return nil, err
	}
	if mismatch != nil {
		c.t.Errorf("conform: %s (%s %s): %v", pair, req.Method, req.URL.Path, mismatch)
	}
	return resp, nil
}

// Check returns what an answer has that its operation does not allow, nil if nothing. It
// reads a JSON body completely and puts it back; every other body is left alone. The
// error is that of an answer that could not be read to its end.
func Check(operation *openapi3.Operation, resp *http.Response) (mismatch, err error) {
	mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	var body []byte
	// A connection that was taken over has no body that ends.
	if resp.StatusCode != http.StatusSwitchingProtocols && (mediaType == "" || mediaType == jsonType) {
		if body, err = takeBody(resp); err != nil {
			return nil, err
		}
	}
	request := resp.Request
	if request == nil {
		request = &http.Request{Method: http.MethodGet, URL: &url.URL{}}
	}
	input := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: request, Route: &routers.Route{Operation: operation}},
		Status:                 resp.StatusCode,
		Header:                 resp.Header,
	}
	return check(request.Context(), input, mediaType, body), nil
}

// Seen returns the answers that came so far as sorted pairs of operation and status,
// such as "getSandbox 404".
func (c *Transport) Seen() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.seen))
}

// Unseen returns, in the form of [Transport.Seen], the answers that the contract
// declares and that did not come yet.
func (c *Transport) Unseen() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var unseen []string
	for _, item := range c.doc.Paths.Map() {
		for _, op := range item.Operations() {
			for status := range op.Responses.Map() {
				if pair := op.OperationID + " " + status; !c.seen[pair] {
					unseen = append(unseen, pair)
				}
			}
		}
	}
	slices.Sort(unseen)
	return unseen
}

// CheckEvent checks whether the data of one event of a stream is valid JSON of the
// schema of that name in the contract. The error says what is wrong.
func (c *Transport) CheckEvent(schema string, data []byte) error {
	ref := c.doc.Components.Schemas[schema]
	if ref == nil {
		return fmt.Errorf("the contract has no schema %s", schema)
	}
	var value any
	if err := json.Unmarshal(data, &value); err != nil {
		return fmt.Errorf("event data %q is not JSON: %w", data, err)
	}
	if err := ref.Value.VisitJSON(value, openapi3.VisitAsResponse()); err != nil {
		return fmt.Errorf("event data %s does not match %s: %w", data, schema, err)
	}
	return undeclared(ref.Value, value, schema)
}

// check compares an answer with the operation that it belongs to. The body is nil
// unless it is JSON.
func check(ctx context.Context, answer *openapi3filter.ResponseValidationInput, mediaType string, body []byte) error {
	declared := answer.RequestValidationInput.Route.Operation.Responses.Status(answer.Status)
	if declared == nil {
		return errors.New("the contract does not declare this status")
	}
	if answer.Header.Get(retryAfter) != "" && declared.Value.Headers[retryAfter] == nil {
		return fmt.Errorf("the contract declares no header %s", retryAfter)
	}
	content := find(declared.Value.Content, mediaType)
	switch {
	case len(declared.Value.Content) == 0 && (len(body) > 0 || mediaType != ""):
		return fmt.Errorf("the contract declares no body, but there is one of type %q: %q", mediaType, body)
	case len(declared.Value.Content) > 0 && content == nil:
		return fmt.Errorf("the contract declares no content of type %q, only %q",
			mediaType, slices.Sorted(maps.Keys(declared.Value.Content)))
	}
	isJSON := content != nil && mediaType == jsonType
	answer.Options = &openapi3filter.Options{IncludeResponseStatus: true, ExcludeResponseBody: !isJSON}
	answer.SetBodyBytes(body)
	if err := openapi3filter.ValidateResponse(ctx, answer); err != nil {
		return fmt.Errorf("%w; the body is %q", err, body)
	}
	if !isJSON {
		return nil
	}
	var value any
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber() // JSON has numbers that Go's have no room for, such as 1e400
	if err := decoder.Decode(&value); err != nil {
		return fmt.Errorf("the body %q is not JSON: %w", body, err)
	}
	if err := unlisted(content.Schema.Value, answer.Status, value); err != nil {
		return err
	}
	return undeclared(content.Schema.Value, value, "body")
}

// unlisted reports whether the code of an error is none of those that the contract names, as code,
// in the description of its errors' code.
func unlisted(schema *openapi3.Schema, status int, value any) error {
	property := schema.Properties["code"]
	fields, _ := value.(map[string]any)
	code, ok := fields["code"].(string)
	if status < http.StatusBadRequest || property == nil || !ok {
		return nil
	}
	if !strings.Contains(property.Value.Description, "`"+code+"`") {
		return fmt.Errorf("the contract does not list the code %s", code)
	}
	return nil
}

// takeBody reads the whole body and leaves a fresh copy of it in the answer.
func takeBody(resp *http.Response) ([]byte, error) {
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return body, nil
}

// find returns the declared content of a media type, or nil. Parameters such as a
// charset do not take part.
func find(content openapi3.Content, mediaType string) *openapi3.MediaType {
	for key, declared := range content {
		if base, _, err := mime.ParseMediaType(key); err == nil && base == mediaType {
			return declared
		}
	}
	return nil
}

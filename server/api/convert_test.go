package api_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gen "sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/server/lifecycle"
)

const completeBody = `{
  "image": {"uri": "images.example.com/agent:1.4", "auth": {"username": "robot", "password": "secret"}},
  "timeout": 3600,
  "resourceLimits": {"cpu": "500m", "memory": "1Gi", "gpu": "1"},
  "entrypoint": ["/bin/sh", "-c", "exec agent"],
  "env": {"LANG": "C.UTF-8"},
  "metadata": {"name": "nightly"},
  "networkPolicy": {"defaultAction": "deny", "egress": [{"action": "allow", "target": "*.example.com"}]},
  "volumes": [
    {"name": "data", "mountPath": "/data", "readOnly": true, "host": {"path": "/srv/data"}},
    {"name": "data", "mountPath": "/data", "subPath": "run-7", "pvc": {"claimName": "data"}}
  ],
  "extensions": {"z.last": 12345678901234567890, "a.first": [1.50, 1e400, "<&>\u2028"], "n": null}
}`

// TestExamplesOfTheContractAreValid: a schema has not every rule of a sandbox.
func TestExamplesOfTheContractAreValid(t *testing.T) {
	document, err := contract()
	if err != nil {
		t.Fatal(err)
	}
	examples := document.Paths.Value("/v1/sandboxes").Post.RequestBody.Value.Content["application/json"].Examples
	for name, example := range examples {
		body, err := json.Marshal(example.Value.Value)
		if err != nil {
			t.Fatal(err)
		}
		b := newBackend()
		response, err := serve(t, b).client.CreateSandboxWithBodyWithResponse(t.Context(), nil, "application/json",
			bytes.NewReader(body))
		if err != nil || response.JSON202 == nil {
			t.Fatalf("%s: %v, %s", name, err, response.Body)
		}
		if err := b.spec.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(examples) < 2 {
		t.Errorf("%d examples", len(examples))
	}
}

func TestCreateReachesTheBackend(t *testing.T) {
	b := newBackend()
	s := serve(t, b)
	idempotencyKey := "key"
	response, err := s.client.CreateSandboxWithBodyWithResponse(t.Context(), &gen.CreateSandboxParams{IdempotencyKey: &idempotencyKey},
		"application/json", strings.NewReader(completeBody))
	if err != nil {
		t.Fatal(err)
	}
	if response.JSON202 == nil || response.HTTPResponse.Header.Get("Location") != "/v1/sandboxes/"+b.sandbox.ID {
		t.Fatalf("%s, Location %q: %s", response.Status(), response.HTTPResponse.Header.Get("Location"), response.Body)
	}
	if strings.Contains(string(response.Body), `"image"`) || strings.Contains(string(response.Body), `"updatedAt"`) {
		t.Errorf("the create response shows what the document omits: %s", response.Body)
	}
	if b.options.IdempotencyKey != "key" || b.options.Owner != "" {
		t.Errorf("options: %+v", b.options)
	}
	extensions := b.spec.Extensions
	b.spec.Extensions = nil
	want := lifecycle.Spec{
		Image:      "images.example.com/agent:1.4",
		Auth:       &lifecycle.ImageAuth{Username: "robot", Password: "secret"},
		Timeout:    time.Hour,
		Resources:  lifecycle.ResourceLimits{"cpu": "500m", "memory": "1Gi", "gpu": "1"},
		Entrypoint: []string{"/bin/sh", "-c", "exec agent"},
		Env:        map[string]string{"LANG": "C.UTF-8"},
		Metadata:   map[string]string{"name": "nightly"},
		NetworkPolicy: &lifecycle.NetworkPolicy{DefaultAction: "deny",
			Egress: []lifecycle.EgressRule{{Action: "allow", Target: "*.example.com"}}},
		Volumes: []lifecycle.Volume{
			{Name: "data", MountPath: "/data", ReadOnly: true, HostPath: "/srv/data"},
			{Name: "data", MountPath: "/data", SubPath: "run-7", ClaimName: "data"},
		},
	}
	if !reflect.DeepEqual(b.spec, want) {
		t.Errorf("spec:\n%+v\nwant:\n%+v", b.spec, want)
	}
	// Byte for byte as the client wrote it.
	if _, sent, _ := strings.Cut(completeBody, `"extensions": `); string(extensions) != strings.TrimSuffix(sent, "\n}") {
		t.Errorf("extensions %s, sent %s", extensions, sent)
	}
}

func TestExtensionsComeBackByteForByte(t *testing.T) {
	for _, extensions := range []string{
		`{}`, "{ \n\t\"b\" : 1e400, \"a\":\"<&>\\u003c\u2028\", \"a\":[1.50,-0] }", "{\"\xff\":\"\\ud800\"}",
	} {
		b := newBackend()
		b.sandbox.Extensions = []byte(extensions)
		b.listing = lifecycle.Listing{Items: []lifecycle.Sandbox{b.sandbox, newBackend().sandbox, b.sandbox}, Total: 3}
		s := serve(t, b)
		read, err := s.client.GetSandboxWithResponse(t.Context(), b.sandbox.ID, nil)
		if err == nil && !strings.HasSuffix(string(read.Body), `,"extensions":`+extensions+"}\n") {
			t.Errorf("get: %s", read.Body)
		}
		list, listErr := s.client.ListSandboxesWithResponse(t.Context(), nil)
		if listErr == nil && strings.Count(string(list.Body), `,"extensions":`+extensions+"}") != 2 {
			t.Errorf("list: %s", list.Body)
		}
		if err != nil || listErr != nil {
			t.Error(err, listErr)
		}
	}
}

func TestSmallestCreate(t *testing.T) {
	b := newBackend()
	s := serve(t, b)
	response, err := s.client.CreateSandboxWithResponse(t.Context(), nil, createRequest())
	if err != nil || response.JSON202 == nil {
		t.Fatalf("%v, %s", err, response.Body)
	}
	want := lifecycle.Spec{Image: "busybox", Timeout: time.Minute, Entrypoint: []string{"sleep", "60"}, Resources: lifecycle.ResourceLimits{}}
	if !reflect.DeepEqual(b.spec, want) {
		t.Errorf("spec: %+v", b.spec)
	}
	if response.JSON202.Metadata == nil || !strings.Contains(string(response.Body), `"metadata":{}`) {
		t.Errorf("absent metadata must show as an empty object: %s", response.Body)
	}
}

func TestGetShowsEverything(t *testing.T) {
	b := newBackend()
	b.sandbox.Metadata = map[string]string{"name": "n"}
	b.sandbox.Limits = lifecycle.Limits{NanoCPUs: 500_000_000, MemoryBytes: 1 << 29, GPUs: 1}
	response, err := serve(t, b).client.GetSandboxWithResponse(t.Context(), b.sandbox.ID, nil)
	if err != nil || response.JSON200 == nil {
		t.Fatalf("%v, %s", err, response.Body)
	}
	want := gen.Sandbox{
		ID: b.sandbox.ID, Image: gen.Image{URI: "busybox"}, Metadata: gen.Metadata{"name": "n"}, Entrypoint: gen.Entrypoint{"sleep", "60"},
		CreatedAt: birth, ExpiresAt: birth.Add(time.Hour), Owner: new("alice"),
		Limits: &gen.SandboxLimits{
			CPUMillis: new(int64(500)), MemoryBytes: new(int64(1 << 29)), Gpus: new(1),
		},
		Status: gen.SandboxStatus{State: "Pending", Reason: "PROVISIONING", Message: "accepted", LastTransitionAt: birth},
	}
	if !reflect.DeepEqual(*response.JSON200, want) {
		t.Errorf("got  %+v\nwant %+v", *response.JSON200, want)
	}
}

func TestListQuery(t *testing.T) {
	first := lifecycle.Page{Number: 1, Size: 20}
	tests := []struct {
		name   string
		query  string
		filter lifecycle.Filter
		page   lifecycle.Page
	}{
		{"defaults", "", lifecycle.Filter{}, first},
		{"page", "page=3&pageSize=7", lifecycle.Filter{}, lifecycle.Page{Number: 3, Size: 7}},
		{"states in any case", "state=RUNNING&state=paused", lifecycle.Filter{States: []lifecycle.State{"Running", "Paused"}}, first},
		{"a state a thousand times", strings.Repeat("state=running&", 999) + "state=Running", lifecycle.Filter{States: []lifecycle.State{"Running"}}, first},
		{"metadata", "metadata=" + "name%3Dnightly%26team%3Dresearch", lifecycle.Filter{Metadata: map[string]string{"name": "nightly", "team": "research"}}, first},
		{"metadata, encoded twice", "metadata=" + "a%2526b%3D%253D%2Bc%2520d", lifecycle.Filter{Metadata: map[string]string{"a&b": "= c d"}}, first},
		{"metadata with an empty value", "metadata=a%3D", lifecycle.Filter{Metadata: map[string]string{"a": ""}}, first},
		{"empty metadata", "metadata=", lifecycle.Filter{}, first},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBackend()
			s := serve(t, b)
			response, err := s.http.Get(s.url + "/v1/sandboxes?" + tt.query)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			if response.StatusCode != http.StatusOK {
				t.Fatalf("status %d", response.StatusCode)
			}
			if !reflect.DeepEqual(b.filter, tt.filter) || b.page != tt.page {
				t.Errorf("filter %+v page %+v, want %+v and %+v", b.filter, b.page, tt.filter, tt.page)
			}
		})
	}
}

func TestListQueryRefused(t *testing.T) {
	for query, field := range map[string]string{
		"page=0":               "page",
		"pageSize=0":           "pageSize",
		"pageSize=1001":        "pageSize",
		"page=x":               "page",
		"state=Sleeping":       "state",
		"metadata=novalue":     "metadata",
		"metadata=%3Dv":        "metadata",
		"metadata=a%3D%25ZZ":   "metadata",
		"metadata=a%3D1%26a=2": "metadata",
	} {
		t.Run(query, func(t *testing.T) {
			s := serve(t, newBackend())
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/v1/sandboxes?"+query, nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := s.http.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			var body gen.Error
			if err := json.NewDecoder(response.Body).Decode(&body); err != nil {
				t.Fatal(err)
			}
			if response.StatusCode != http.StatusBadRequest || !strings.Contains(body.Message, field) || body.Detail != body.Message || body.Code != "INVALID_REQUEST_BODY" {
				t.Errorf("%d: %+v", response.StatusCode, body)
			}
		})
	}
}

func TestPagination(t *testing.T) {
	tests := []struct{ total, page, size, pages, next int }{
		{0, 1, 20, 0, 0}, {1, 1, 20, 1, 0}, {20, 1, 20, 1, 0}, {21, 1, 20, 2, 1}, {21, 2, 20, 2, 0}, {21, 9, 20, 2, 0},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			b := newBackend()
			b.listing.Total = tt.total
			response, err := serve(t, b).client.ListSandboxesWithResponse(t.Context(), &gen.ListSandboxesParams{Page: &tt.page, PageSize: &tt.size})
			if err != nil || response.JSON200 == nil {
				t.Fatalf("%v, %s", err, response.Body)
			}
			want := gen.Pagination{Page: tt.page, PageSize: tt.size, TotalItems: tt.total, TotalPages: tt.pages, HasNextPage: tt.next == 1}
			if response.JSON200.Pagination != want || response.JSON200.Items == nil {
				t.Errorf("%+v, want %+v; items %v", response.JSON200.Pagination, want, response.JSON200.Items)
			}
		})
	}
}

func TestRenewKeepsTheInstant(t *testing.T) {
	b := newBackend()
	s := serve(t, b)
	response, err := s.client.RenewExpirationWithBodyWithResponse(t.Context(), b.sandbox.ID, "application/json",
		strings.NewReader(`{"expiresAt": "2026-11-21T15:00:00.5+02:00"}`))
	if err != nil || response.JSON200 == nil {
		t.Fatalf("%v, %s", err, response.Body)
	}
	want := time.Date(2026, 11, 21, 13, 0, 0, 5e8, time.UTC)
	if !b.renewed.Equal(want) || !strings.Contains(string(response.Body), `"2026-11-21T13:00:00.5Z"`) {
		t.Errorf("renewed to %v, answer %s", b.renewed, response.Body)
	}
}

func TestEndpointHost(t *testing.T) {
	tests := []struct{ name, host, header, want string }{
		{"itself", "the service", "sandbox.example.com:8080", "sandbox.example.com:8080"},
		{"itself without a port", "the service", "sandbox.example.com", "sandbox.example.com"},
		{"itself by IPv6", "the service", "[2001:db8::7]:8080", "[2001:db8::7]:8080"},
		{"name and port", "", "sandbox.example.com:8080", "sandbox.example.com:32768"},
		{"name", "", "sandbox.example.com", "sandbox.example.com:32768"},
		{"IPv4", "", "192.0.2.7:8080", "192.0.2.7:32768"},
		{"IPv6 and port", "", "[2001:db8::7]:8080", "[2001:db8::7]:32768"},
		{"IPv6", "", "[2001:db8::7]", "[2001:db8::7]:32768"},
		{"configured", "203.0.113.9", "sandbox.example.com:8080", "203.0.113.9:32768"},
		{"configured IPv6", "2001:db8::9", "sandbox.example.com:8080", "[2001:db8::9]:32768"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBackend()
			if b.endpoint.Host = tt.host; tt.host == "the service" {
				b.endpoint.Host, b.endpoint.Port = "", 0
			}
			s := serve(t, b)
			request, err := gen.NewGetEndpointRequest(s.url, b.sandbox.ID, 8000, nil)
			if err != nil {
				t.Fatal(err)
			}
			request.Host = tt.header
			raw, err := s.http.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			response, err := gen.ParseGetEndpointResponse(raw)
			if err != nil || response.JSON200 == nil {
				t.Fatalf("%v, %s", err, response.Body)
			}
			want := gen.Endpoint{Endpoint: tt.want + "/proxy/8000", URL: "http://" + tt.want + "/proxy/8000",
				Headers: gen.AccessHeaders{"X-EXECD-ACCESS-TOKEN": "token"}}
			if !reflect.DeepEqual(*response.JSON200, want) {
				t.Errorf("%+v, want %+v", *response.JSON200, want)
			}
		})
	}
}

// A list is written as its client takes it: what the service holds of it does not grow with the
// metadata.
func TestListStreams(t *testing.T) {
	b := newBackend()
	b.sandbox.Metadata = map[string]string{}
	for i := range 225 {
		b.sandbox.Metadata[strconv.Itoa(i)] = strings.Repeat("x", 4000)
	}
	const items = 200 // 180 MB
	b.listing = lifecycle.Listing{Items: slices.Repeat([]lifecycle.Sandbox{b.sandbox}, items), Total: items}
	s := serve(t, b)
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/v1/sandboxes?pageSize=1000", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := io.ReadFull(response.Body, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	var memory runtime.MemStats
	if runtime.ReadMemStats(&memory); memory.HeapAlloc > 64<<20 {
		t.Errorf("while a client reads a list of 180 MB, %d MB are in use", memory.HeapAlloc>>20)
	}
	rest, err := io.Copy(io.Discard, response.Body)
	if want := int64(items) * 225 * 4000; err != nil || rest < want-1<<20 {
		t.Errorf("the rest has %d bytes, %v", rest, err)
	}
}

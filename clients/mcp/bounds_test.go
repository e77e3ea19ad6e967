package mcp_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	server "sandbox.internal/clients/mcp"
)

// maxNote is how much longer than MaxText an answer is that says what was cut.
const maxNote = 200

// callOf returns the text of an answer of a service, and whether it is an error.
func callOf(t *testing.T, mux *http.ServeMux, tool string, arguments map[string]any) (string, bool) {
	t.Helper()
	service := httptest.NewServer(mux)
	t.Cleanup(service.Close)
	result, err := connect(t, service.URL).CallTool(t.Context(),
		&mcp.CallToolParams{Name: tool, Arguments: arguments})
	if err != nil {
		t.Fatal(err)
	}
	answer, ok := result.Content[0].(*mcp.TextContent)
	if !ok || len(result.Content) != 1 {
		t.Fatalf("the answer is %+v", result.Content)
	}
	return answer.Text, result.IsError
}

// listed makes a service whose list has that many sandboxes, and counts the bytes of its answers.
func listed(t *testing.T, count int, item func(int) map[string]any) (*http.ServeMux, *int) {
	t.Helper()
	sent := new(int)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/sandboxes", func(w http.ResponseWriter, r *http.Request) {
		page, _ := strconv.Atoi(r.URL.Query().Get("page"))
		size, _ := strconv.Atoi(r.URL.Query().Get("pageSize"))
		items := []map[string]any{}
		for i := (page - 1) * size; i < min(page*size, count); i++ {
			items = append(items, item(i))
		}
		body, err := json.Marshal(map[string]any{"items": items, "pagination": map[string]any{"page": page,
			"pageSize": size, "totalItems": count, "hasNextPage": page*size < count}})
		if err != nil {
			t.Error(err)
		}
		n, _ := w.Write(body)
		*sent += n
	})
	return mux, sent
}

// TestListIsBounded: what others call their sandboxes and images is shown in part.
func TestListIsBounded(t *testing.T) {
	for name, test := range map[string]struct {
		count      int
		name, uri  string
		least, all int // of the lines
	}{
		"long names":   {50, strings.Repeat("\x01", 4096), "python:3.12", 40, 50},
		"a long image": {3, "a", strings.Repeat("i", 1<<20), 3, 3},
		"long images":  {50, "a", strings.Repeat("i", 1024), 40, 50},
		"many":         {1000, "a", "python:3.12", 50, 51},
	} {
		t.Run(name, func(t *testing.T) {
			mux, sent := listed(t, test.count, func(i int) map[string]any {
				return map[string]any{"id": fmt.Sprintf("5f0c1e0e-2f0b-4a53-9b0e-%012d", i),
					"image":    map[string]any{"uri": test.uri},
					"metadata": map[string]any{"name": test.name}, "status": map[string]any{"state": "Running"},
					"createdAt": "2026-01-02T15:04:05Z", "expiresAt": "2026-01-02T15:04:05Z"}
			})
			text, failed := callOf(t, mux, "list_sandboxes", nil)
			lines := strings.Count(text, "\n")
			if failed || len(text) > server.MaxText+maxNote || lines < test.least || lines > test.all {
				t.Errorf("%t, %d bytes, %d lines: %.300s", failed, len(text), lines, text)
			}
			if more := strings.Contains(text, "more"); more != (test.count > 50) {
				t.Errorf("says that there are more: %t", more)
			}
			if test.count == 1000 && *sent > 50_000 {
				t.Errorf("%d bytes were read for %d lines", *sent, lines)
			}
		})
	}
}

// TestDiffIsBounded: a program in the sandbox chooses how many files have changed, and their names.
func TestDiffIsBounded(t *testing.T) {
	for name, test := range map[string]struct {
		count       int
		path        string
		least, most int // of the lines
	}{
		"few":        {3, "/w/a", 3, 3},
		"many":       {1000, "/w/a", 201, 201},
		"long names": {100, "/" + strings.Repeat("\n", 4000), 2, 10},
	} {
		t.Run(name, func(t *testing.T) {
			mux := http.NewServeMux()
			mux.HandleFunc("GET /v1/sandboxes/box", func(w http.ResponseWriter, _ *http.Request) {
				_, _ = fmt.Fprint(w, `{"id":"box","status":{"state":"Running"}}`)
			})
			mux.HandleFunc("GET /v1/snapshots/one/diff", func(w http.ResponseWriter, r *http.Request) {
				limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
				if err != nil || limit > 200 || r.URL.Query().Get("to") != "two" {
					t.Errorf("the service is asked for %s", r.URL.RawQuery)
				}
				items := []map[string]any{}
				for i := range min(limit, test.count) {
					items = append(items, map[string]any{"kind": "added", "type": "file", "path": test.path + strconv.Itoa(i), "size": 7})
				}
				if err := json.NewEncoder(w).Encode(map[string]any{"items": items, "truncated": test.count > limit}); err != nil {
					t.Error(err)
				}
			})
			text, failed := callOf(t, mux, "checkpoint",
				map[string]any{"sandbox": "box", "action": "diff", "checkpoint": "one", "to": "two"})
			lines := strings.Count(text, "\n")
			if failed || len(text) > server.MaxText+maxNote || lines < test.least || lines > test.most {
				t.Errorf("%t, %d bytes, %d lines: %.300s", failed, len(text), lines, text)
			}
			if more := strings.Contains(text, "more"); more != (lines < test.count || test.count > 200) {
				t.Errorf("says that there are more: %t", more)
			}
		})
	}
}

// TestListOfLargeMetadata: pages that do not fit into an answer are asked for in parts.
func TestListOfLargeMetadata(t *testing.T) {
	mux, _ := listed(t, 20, func(i int) map[string]any {
		metadata := map[string]string{"name": "large"}
		for k := range 255 {
			metadata[fmt.Sprint(k)] = strings.Repeat("m", 4096)
		}
		return map[string]any{"id": fmt.Sprintf("box-%d", i), "image": map[string]any{"uri": "x"},
			"metadata": metadata, "status": map[string]any{"state": "Running"},
			"createdAt": "2026-01-02T15:04:05Z", "expiresAt": "2026-01-02T15:04:05Z"}
	})
	text, failed := callOf(t, mux, "list_sandboxes", nil)
	if lines := strings.Count(text, "\n"); failed || lines != 20 {
		t.Errorf("%t, %d lines: %.300s", failed, lines, text)
	}
}

// TestErrorsAreBounded: the message of a sandbox that failed has its log.
func TestErrorsAreBounded(t *testing.T) {
	message := "the entrypoint failed: " + strings.Repeat("a line of its log\n", 3500) + "the reason"
	status := map[string]any{"state": "Failed", "reason": "START_FAILED", "message": message,
		"lastTransitionAt": "2026-01-02T15:04:05Z"}
	box, err := json.Marshal(map[string]any{"id": "box", "status": status, "metadata": map[string]any{},
		"entrypoint": []string{"x"}, "createdAt": "2026-01-02T15:04:05Z", "expiresAt": "2026-01-02T15:04:05Z"})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/sandboxes", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusAccepted)
		_, _ = w.Write(box)
	})
	mux.HandleFunc("GET /v1/sandboxes/box", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(box) })
	mux.HandleFunc("GET /v1/sandboxes/box/events", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprint(w, "id: 1\ndata: {\"type\":\"state\",\"from\":\"Pending\",\"to\":\"Failed\","+
			"\"timestamp\":\"2026-01-02T15:04:05Z\"}\n\n")
	})
	text, failed := callOf(t, mux, "create_sandbox", map[string]any{"image": "x"})
	if !failed || len(text) > server.MaxText+maxNote || !strings.Contains(text, "START_FAILED") ||
		!strings.HasSuffix(text, "the reason") || !strings.Contains(text, "left out") {
		t.Errorf("%t, %d bytes: %.200s", failed, len(text), text)
	}
}

// TestPortWithoutASigningKey: the service has no signed URL, and the port listens all the same.
func TestPortWithoutASigningKey(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/sandboxes/box", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, `{"id":"box","status":{"state":"Running"},"expiresAt":"2126-01-02T15:04:05Z"}`)
	})
	mux.HandleFunc("GET /v1/sandboxes/box/proxy/8000/", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /v1/sandboxes/box/endpoints/8000", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("expires") == "" {
			t.Error("no signed URL is asked for")
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = fmt.Fprint(w, `{"code":"SERVICE_UNAVAILABLE","message":"the service has no signing key"}`)
	})
	text, failed := callOf(t, mux, "wait_for_port", map[string]any{"sandbox": "box", "port": 8000})
	if failed || !strings.Contains(text, "/v1/sandboxes/box/proxy/8000/\n") || !strings.Contains(text, "no signing key") {
		t.Errorf("%t: %s", failed, text)
	}
}

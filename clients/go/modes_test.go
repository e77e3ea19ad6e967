package sandbox_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	sandbox "sandbox.internal/clients/go"
)

// TestModes are octal digits, and anything else is refused before a request is sent.
func TestModes(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	var paths, bodies []string
	mux.HandleFunc("POST /v1/sandboxes/box/proxy/44772/", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		paths, bodies = append(paths, r.URL.Path), append(bodies, string(body))
		_ = json.NewEncoder(w).Encode(struct{}{})
	})
	box, err := scripted(t, mux).Connect(t.Context(), "box")
	check(t, err)
	ctx, files := t.Context(), box.Files
	for _, mode := range []string{"u+x", "999", "07555", "0o644", "-1", " 644", "644\n", "rwx"} {
		options := &sandbox.WriteOptions{Mode: mode}
		for call, err := range map[string]error{
			"Write": files.Write(ctx, "/a", nil, options),
			"WriteAll": files.WriteAll(ctx, sandbox.FileContent{Path: "/a"},
				sandbox.FileContent{Path: "/b", Options: options}),
			"WriteFrom":      files.WriteFrom(ctx, "/a", strings.NewReader(""), options),
			"MakeDirectory":  files.MakeDirectory(ctx, "/a", options),
			"SetPermissions": files.SetPermissions(ctx, map[string]sandbox.Permission{"/a": *options}),
		} {
			if err == nil || !strings.HasPrefix(err.Error(), "mode: must be one to four octal digits") {
				t.Errorf("%s with the mode %q: %v", call, mode, err)
			}
		}
	}
	if len(paths) > 0 {
		t.Errorf("requests were sent to %q", paths)
	}
	check(t, files.MakeDirectory(ctx, "/a", &sandbox.WriteOptions{Mode: "0755"}))
	check(t, files.SetPermissions(ctx, map[string]sandbox.Permission{"/a": {Mode: "0", Owner: "1000"}}))
	check(t, files.SetPermissions(ctx, map[string]sandbox.Permission{"/a": {Group: "users"}}))
	check(t, files.WriteText(ctx, "/a", "", &sandbox.WriteOptions{Mode: "4711"}))
	if len(bodies) != 4 {
		t.Fatalf("requests were sent to %q", paths)
	}
	for i, want := range []string{
		`{"/a":{"mode":755}}`, `{"/a":{"mode":0,"owner":"1000"}}`, `{"/a":{"group":"users"}}`, `"mode":4711`,
	} {
		if !strings.Contains(bodies[i], want) {
			t.Errorf("the body is %s, want %s", bodies[i], want)
		}
	}
}

package sandbox_test

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"

	sandbox "sandbox.internal/clients/go"
)

// TestDefaultsAreAskedForOnce: clients of one key that differ in their names ask the service once,
// and send what it has published.
func TestDefaultsAreAskedForOnce(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/version", func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = io.WriteString(w, `{"defaults":{"image":"usual","timeout":700,"entrypoint":["idle"],`+
			`"resourceLimits":{}}}`)
	})
	mux.HandleFunc("POST /v1/sandboxes", func(w http.ResponseWriter, r *http.Request) {
		var request struct {
			Image      struct{ URI string }
			Timeout    int
			Entrypoint []string
		}
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil || request.Image.URI != "usual" ||
			request.Timeout != 700 || !slices.Equal(request.Entrypoint, []string{"idle"}) {
			t.Errorf("the request is %+v, %v", request, err)
		}
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, scriptedBox)
	})
	client := scripted(t, mux)
	for _, name := range []string{"first", "second"} {
		named, err := client.WithUserAgent(name)
		check(t, err)
		_, err = named.Create(t.Context(), &sandbox.CreateOptions{Wait: -1})
		check(t, err)
	}
	if got := asked.Load(); got != 1 {
		t.Errorf("the service was asked %d times for its defaults, want once", got)
	}
}

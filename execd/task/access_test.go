package task

import (
	"context"
	"crypto/ed25519"
	"net/http"
	"net/http/httptest"
	"testing"

	"sandbox.internal/runtime/tasks"
)

// TestAccess: an executor with the controller's key serves the controller's proofs for its own pod, until the pod is reset.
func TestAccess(t *testing.T) {
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	serve := func(access Access) (url string) {
		executor := &Executor{Options: Options{MainMarker: "SANDBOX_MAIN=none of this machine's"}, entries: map[string]*entry{}, changed: make(chan struct{})}
		server := httptest.NewServer(executor.Handler(access))
		t.Cleanup(server.Close)
		return server.URL
	}
	ask := func(method, url, token string) (status int, challenge string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set(tasks.TokenHeader, token)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return response.StatusCode, response.Header.Get(tasks.ChallengeHeader)
	}
	const mine, other = "0b6e7a3c-1", "0b6e7a3c-2"
	url := serve(Access{Key: public, Pod: mine})
	neighbour := serve(Access{Key: public, Pod: other})

	status, challenge := ask("GET", url+"/tasks", "")
	if status != http.StatusUnauthorized || challenge == "" {
		t.Fatalf("without a proof: %d, challenge %q", status, challenge)
	}
	if status, _ := ask("POST", url+"/reset", ""); status != http.StatusUnauthorized {
		t.Errorf("a reset without a proof: %d", status)
	}
	proof := tasks.Prove(key, mine, challenge)
	if status, _ := ask("GET", url+"/tasks", proof); status != http.StatusOK {
		t.Errorf("with a proof: %d", status)
	}
	// A pod that relays its neighbour's challenge gets a proof for itself.
	_, foreign := ask("GET", neighbour+"/tasks", "")
	if status, _ := ask("GET", neighbour+"/tasks", tasks.Prove(key, mine, foreign)); status != http.StatusUnauthorized {
		t.Errorf("the proof for a pod opens its neighbour: %d", status)
	}
	ask("POST", url+"/reset", proof) // there is nothing to reset here; the challenge is another one whatever comes of it
	if status, _ := ask("GET", url+"/tasks", proof); status != http.StatusUnauthorized {
		t.Errorf("a proof of before the reset: %d", status)
	}
	client := &tasks.Client{BaseURL: url, Sign: func(_ context.Context, challenge string) (string, error) {
		return tasks.Prove(key, mine, challenge), nil
	}}
	if _, err := client.List(t.Context()); err != nil {
		t.Errorf("the controller, after the reset: %v", err)
	}
	if status, _ := ask("GET", url+"/healthz", ""); status != http.StatusOK {
		t.Errorf("healthz: %d", status)
	}

	both := serve(Access{Token: "own", Key: public, Pod: mine})
	if status, _ := ask("GET", both+"/tasks", "own"); status != http.StatusOK {
		t.Errorf("the executor's own token: %d", status)
	}
	if status, _ := ask("GET", serve(Access{})+"/tasks", ""); status != http.StatusOK {
		t.Errorf("neither token nor key: %d", status)
	}
}

package sandbox_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"testing"

	sandbox "sandbox.internal/clients/go"
)

// TestEmptyPolicies are refused before anything is sent: the service takes them for ones that allow
// everything.
func TestEmptyPolicies(t *testing.T) {
	mux := http.NewServeMux()
	sent := 0
	mux.HandleFunc("/v1/sandboxes/box/network-policy", func(w http.ResponseWriter, r *http.Request) {
		sent++
		_, _ = w.Write([]byte(`{"defaultAction":"allow"}`))
	})
	client := scripted(t, mux)
	box, err := client.Connect(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	for name, policy := range map[string]sandbox.NetworkPolicy{
		"empty": {}, "no rules": {Egress: []sandbox.EgressRule{}}, "a dry run of nothing": {DryRun: new(true)},
	} {
		if _, err := box.Network.SetPolicy(t.Context(), policy); !errors.Is(err, sandbox.ErrEmptyPolicy) {
			t.Errorf("set, %s: %v", name, err)
		}
		if _, err := client.Create(t.Context(), &sandbox.CreateOptions{Image: "x", NetworkPolicy: &policy}); !errors.Is(err, sandbox.ErrEmptyPolicy) {
			t.Errorf("create, %s: %v", name, err)
		}
	}
	if sent != 0 {
		t.Errorf("%d policies were sent", sent)
	}
	if _, err := box.Network.SetPolicy(t.Context(), sandbox.NetworkPolicy{DefaultAction: new(sandbox.Allow)}); err != nil || sent != 1 {
		t.Errorf("one that allows everything: %v", err)
	}
}

// TestIdleEntrypoint is what a sandbox has that is created without an entrypoint: images need no
// program for it.
func TestIdleEntrypoint(t *testing.T) {
	mux := http.NewServeMux()
	var asked struct{ Entrypoint []string }
	mux.HandleFunc("POST /v1/sandboxes", func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewDecoder(r.Body).Decode(&asked)
		w.WriteHeader(http.StatusAccepted)
		_, _ = w.Write([]byte(scriptedBox))
	})
	if _, err := scripted(t, mux).Create(t.Context(), &sandbox.CreateOptions{Image: "x", Wait: -1}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"/opt/sandbox/execd-init", "idle"}; !slices.Equal(asked.Entrypoint, want) {
		t.Errorf("the entrypoint is %q, want %q", asked.Entrypoint, want)
	}
}

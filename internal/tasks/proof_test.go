package tasks_test

import (
	"context"
	"crypto/ed25519"
	"net/http"
	"net/http/httptest"
	"testing"

	"sandbox.internal/internal/tasks"
)

// TestProof: a proof holds for one key, pod and challenge.
func TestProof(t *testing.T) {
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	stranger, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	proof := tasks.Prove(key, "pod-1", "challenge-1")
	for name, test := range map[string]struct {
		key                   ed25519.PublicKey
		pod, challenge, token string
		want                  bool
	}{
		"as made":           {public, "pod-1", "challenge-1", proof, true},
		"another key":       {stranger, "pod-1", "challenge-1", proof, false},
		"another pod":       {public, "pod-2", "challenge-1", proof, false},
		"another challenge": {public, "pod-1", "challenge-2", proof, false},
		"moved border":      {public, "pod-1\x00challenge", "-1", proof, false},
		"empty":             {public, "pod-1", "challenge-1", "", false},
		"no base64":         {public, "pod-1", "challenge-1", "!" + proof[1:], false},
		"longer":            {public, "pod-1", "challenge-1", proof + "A", false},
	} {
		if got := tasks.Proven(test.key, test.pod, test.challenge, test.token); got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
	}
	if parsed, err := tasks.ParseKey(tasks.FormatKey(public)); err != nil || !parsed.Equal(public) {
		t.Errorf("the key's text form reads as %v, %v", parsed, err)
	}
	for _, text := range []string{"", "AAAA", "no base64"} {
		if _, err := tasks.ParseKey(text); err == nil {
			t.Errorf("%q is taken for a key", text)
		}
	}
}

// TestClientProvesItself: the client answers a challenge once, uses the proof from then on, and
// answers the next challenge; it does not go on for ever with an executor that refuses everything.
func TestClientProvesItself(t *testing.T) {
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	challenge, requests, refuse := "first", 0, false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests++
		if refuse || !tasks.Proven(public, "pod", challenge, r.Header.Get(tasks.TokenHeader)) {
			w.Header().Set(tasks.ChallengeHeader, challenge)
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"code":"UNAUTHORIZED","message":"no"}`))
			return
		}
		_, _ = w.Write([]byte(`{"version":1}`))
	}))
	defer server.Close()
	client := &tasks.Client{BaseURL: server.URL, HTTP: server.Client(), Sign: func(_ context.Context, challenge string) (string, error) {
		return tasks.Prove(key, "pod", challenge), nil
	}}
	for _, step := range []struct {
		name      string
		challenge string
		want      int
	}{{"the first request", "first", 2}, {"another", "first", 1}, {"after a new challenge", "second", 2}, {"another", "second", 1}} {
		requests, challenge = 0, step.challenge
		if _, err := client.List(t.Context()); err != nil || requests != step.want {
			t.Errorf("%s: %d requests, %v; want %d", step.name, requests, err, step.want)
		}
	}
	requests, refuse = 0, true
	if _, err := client.List(t.Context()); !tasks.HasCode(err, tasks.CodeUnauthorized) || requests != 2 {
		t.Errorf("an executor that refuses: %d requests, %v", requests, err)
	}
}

package api_test

import (
	"context"
	"crypto/ed25519"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	gen "sandbox.internal/clients/go/execd"
	"sandbox.internal/execd/api"
	"sandbox.internal/internal/claims"
	"sandbox.internal/openapi/conform"
)

// claimRefusals are claims of what is a sandbox already. What a waiting daemon takes is tested in
// execd/cmd/execd.
func claimRefusals(t *testing.T, d *daemon) []answer {
	t.Helper()
	return []answer{
		{on: d, operation: "claim", target: "POST /claim", body: `{"entrypoint":["true"]}`, status: 409, code: "CONFLICT", says: []string{"sandbox already"}},
		{on: d, operation: "claim", name: "no entrypoint", target: "POST /claim", body: `{}`, status: 400, code: "INVALID_REQUEST_BODY",
			says: []string{"body/entrypoint", "required"}},
	}
}

// claimSuccess claims a daemon that waits.
func claimSuccess(t *testing.T, transport *conform.Transport) {
	public, private, err := ed25519.GenerateKey(nil)
	must(t, err)
	var got []claims.Claim
	var token string
	waiting, err := api.NewWaiting(api.WaitingOptions{
		Key: public, Pod: "pod", Logger: zerolog.Nop(),
		Take: func(claim claims.Claim, with string) { got, token = append(got, claim), with },
	})
	must(t, err)
	server := httptest.NewServer(waiting)
	t.Cleanup(server.Close)
	d := connect(t, server.URL, transport)
	const body = `{"entrypoint":["sleep","1"],"env":{"A":"b"}}`
	digest := claims.Digest([]byte(body))
	proof := claims.Prove(private, "pod", "secret", digest)
	sign := func(_ context.Context, r *http.Request) error {
		r.Header.Set(claims.TokenHeader, "secret")
		return nil
	}
	params := &gen.ClaimParams{XEXECDCLAIMPROOF: &proof, ReprDigest: &digest}
	for _, status := range []int{http.StatusAccepted, http.StatusConflict} {
		response, err := d.client.ClaimWithBody(t.Context(), params, "application/json", strings.NewReader(body), sign)
		must(t, err)
		response.Body.Close()
		if response.StatusCode != status {
			t.Errorf("a claim is answered with %d, want %d", response.StatusCode, status)
		}
	}
	if len(got) != 1 || token != "secret" || len(got[0].Entrypoint) != 2 || got[0].Env["A"] != "b" {
		t.Errorf("taken: %+v with %q", got, token)
	}
}

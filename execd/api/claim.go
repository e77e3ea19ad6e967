package api

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/rs/zerolog"

	"sandbox.internal/execd/internal/invalid"
	gen "sandbox.internal/gen/execd"
	"sandbox.internal/internal/claims"
	"sandbox.internal/openapi/rules"
	"sandbox.internal/openapi/serve"
)

// errClaimed answers claims of what is a sandbox already.
var errClaimed = &serve.Problem{Status: http.StatusConflict, Code: "CONFLICT", Message: "this is a sandbox already: a container takes one claim"}

// Claim implements the operation for a daemon that serves a sandbox.
func (h *handlers) Claim(context.Context, gen.ClaimRequestObject) (gen.ClaimResponseObject, error) {
	return nil, errClaimed
}

// WaitingOptions configures the API of a daemon that waits for its claim.
type WaitingOptions struct {
	// Key is the public part of the key that signs claims, Pod the UID of the pod that is waiting.
	Key ed25519.PublicKey
	Pod string
	// Take is called once, with the claim and the token that comes with it, before the claim is
	// answered.
	Take   func(claim claims.Claim, token string)
	Logger zerolog.Logger
}

// NewWaiting returns the HTTP server of a daemon that waits for its claim. It answers pings,
// without a proof, and takes one claim.
func NewWaiting(options WaitingOptions) (*serve.Server, error) {
	w := &waiting{options: options}
	server, err := serve.New(serve.Options{
		Rules:        rules.Execd(),
		Logger:       options.Logger,
		Authenticate: w.authenticate,
		MaxJSONBody:  claims.MaxBody,
		Problem:      problem,
		InternalCode: "RUNTIME_ERROR",
		Quiet:        []string{"ping"},
	})
	if err != nil {
		return nil, err
	}
	gen.RegisterHandlersWithOptions(server.Echo(), gen.NewStrictHandler(w, nil), gen.RegisterHandlersOptions{
		OperationMiddlewares: server.OperationMiddlewares(),
	})
	return server, nil
}

// waiting has the operations of a waiting daemon. The others, which it does not have, are never
// reached: authenticate admits claims alone.
type waiting struct {
	gen.StrictServerInterface
	options WaitingOptions

	mu    sync.Mutex
	taken bool
}

// Ping implements the operation. There is no token to prove.
func (w *waiting) Ping(context.Context, gen.PingRequestObject) (gen.PingResponseObject, error) {
	return gen.Ping200Response{}, nil
}

// authenticate admits claims that the controller has signed. Nothing of a body is read before that
// is known.
func (w *waiting) authenticate(r *http.Request) (any, error) {
	if r.Method != http.MethodPost || r.URL.Path != "/claim" {
		return nil, serve.Unauthorized("the container waits for its claim: there is no token yet that opens it")
	}
	token, digest := r.Header.Get(claims.TokenHeader), r.Header.Get(claims.DigestHeader)
	if token == "" { // it would turn authentication off
		return nil, serve.Unauthorized("header %s: is required", claims.TokenHeader)
	}
	if !claims.Proven(w.options.Key, w.options.Pod, token, digest, r.Header.Get(claims.ProofHeader)) {
		return nil, serve.Unauthorized("header %s: must be the controller's signature over this pod's UID, the token and the digest", claims.ProofHeader)
	}
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, claims.MaxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, &serve.Problem{Status: http.StatusRequestEntityTooLarge, Code: "REQUEST_TOO_LARGE", Message: "body: is too large for a claim"}
	case err != nil:
		return nil, err
	case claims.Digest(body) != digest:
		return nil, serve.Unauthorized("header %s: is not that of the body", claims.DigestHeader)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return nil, nil
}

// Claim implements the operation.
func (w *waiting) Claim(ctx context.Context, request gen.ClaimRequestObject) (gen.ClaimResponseObject, error) {
	claim := claims.Claim{Entrypoint: request.Body.Entrypoint, Env: request.Body.Env}
	token := serve.Request(ctx).Header.Get(claims.TokenHeader)
	if err := checkClaim(claim, token); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.taken {
		return nil, errClaimed
	}
	w.taken = true
	w.options.Take(claim, token)
	return gen.Claim202JSONResponse{}, nil
}

// checkClaim refuses what no process can be started with.
func checkClaim(claim claims.Claim, token string) error {
	for _, char := range []byte(token) {
		if char <= ' ' || char > '~' {
			return invalid.Errorf("header %s: must be visible ASCII without spaces", claims.TokenHeader)
		}
	}
	for i, word := range claim.Entrypoint {
		if strings.ContainsRune(word, 0) {
			return invalid.Errorf("entrypoint[%d]: must not contain a NUL byte", i)
		}
	}
	for name, value := range claim.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return invalid.Errorf("env: %.128q: a name must be non-empty and without '=', and neither name nor value may contain a NUL byte", name)
		}
	}
	return nil
}

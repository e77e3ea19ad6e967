package claim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/internal/claims"
	"sandbox.internal/internal/failpoint"
	"sandbox.internal/runtime/kube/internal/batch"
	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/wire/sandboxhttp"
)

// attempt is the claim of one pod. Only its follower uses it.
type attempt struct {
	*Claims
	namespace string
	claim     *v1alpha1.Claim
	name      string // of the pod
	pod       types.UID
	address   string

	confined bool   // the egress sidecar has the policy of the claim
	resized  bool   // the pod has the limits of the claim
	token    string // empty while the Secrets were not read
	body     []byte
	taken    bool      // execd has accepted the claim
	since    time.Time // when it had, for the pauses
}

// who answers on execd's port.
type who int

const (
	waits   who = iota // an execd without a token
	ours               // one that has the sandbox's token
	foreign            // one that proves something else
)

// advance takes the next step of the claim, and returns what is known of it then. Every step can be
// repeated: what an execd says of itself decides.
func (a *attempt) advance(ctx context.Context) batch.ClaimState {
	a.resized = a.resized || len(a.claim.Limits) == 0
	if a.token == "" {
		if err := a.read(ctx); err != nil {
			return batch.ClaimState{Message: err.Error()}
		}
	}
	found, err := a.ping(ctx)
	switch {
	case err != nil:
		return batch.ClaimState{Message: "the execd of its pod does not answer yet"}
	case found == ours:
		return batch.ClaimState{Done: true}
	case found == foreign:
		return failed("the execd of its pod is another sandbox's")
	case !a.resized:
		if state := a.resize(ctx); !a.resized {
			return state
		}
	case a.taken: // it is being replaced by the sandbox's
		return batch.ClaimState{Message: "its pod is claimed, and does not serve it yet"}
	}
	if a.claim.NetworkPolicy != "" && !a.confined {
		if state := a.confine(ctx); !a.confined {
			return state
		}
	}
	return a.send(ctx)
}

// confine gives the egress sidecar the policy of the claim. It sets a.confined once that is in
// force.
func (a *attempt) confine(ctx context.Context) batch.ClaimState {
	asking, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	token, err := a.keys.SidecarToken(asking, a.namespace, a.name)
	if err != nil {
		return batch.ClaimState{Message: err.Error()}
	}
	url := "http://" + net.JoinHostPort(a.address, strconv.Itoa(v1alpha1.PortEgress)) + "/policy"
	request, err := http.NewRequestWithContext(asking, http.MethodPut, url, strings.NewReader(a.claim.NetworkPolicy))
	if err != nil {
		return failed("%v", err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set(v1alpha1.HeaderEgressToken, token)
	response, err := a.http.Do(request)
	if err != nil {
		return batch.ClaimState{Message: "the egress sidecar of its pod does not answer"}
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
		a.confined = true
		return batch.ClaimState{}
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusRequestEntityTooLarge:
		state := failed("the egress sidecar of its pod refuses the policy: %s", reason(response))
		state.Reason = v1alpha1.ReasonNetworkError
		return state
	}
	return batch.ClaimState{Message: "the egress sidecar of its pod refuses the policy for now: " + reason(response)}
}

func failed(format string, args ...any) batch.ClaimState {
	return batch.ClaimState{Failed: true, Reason: v1alpha1.ReasonContainerError,
		Message: fmt.Sprintf(format, args...)}
}

// read reads the token and the variables from the Secrets that the claim names, each once.
func (a *attempt) read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	secrets := make(map[string]map[string][]byte)
	value := func(from v1alpha1.SecretKeySelector) (string, error) {
		if secrets[from.Name] == nil {
			var secret corev1.Secret
			if err := a.live.Get(ctx, client.ObjectKey{Namespace: a.namespace, Name: from.Name},
				&secret); err != nil {
				return "", fmt.Errorf("a value of the claim cannot be read: %w", err)
			}
			secrets[from.Name] = secret.Data
		}
		text, ok := secrets[from.Name][from.Key]
		if !ok {
			return "", fmt.Errorf("a value of the claim cannot be read: there is no entry %s in Secret %s",
				from.Key, from.Name)
		}
		return string(text), nil
	}
	claim := claims.Claim{Entrypoint: a.claim.Entrypoint, Env: make(map[string]string)}
	for _, variable := range a.claim.Env {
		claim.Env[variable.Name] = variable.Value
		if variable.ValueFrom != nil {
			text, err := value(variable.ValueFrom.SecretKeyRef)
			if err != nil {
				return err
			}
			claim.Env[variable.Name] = text
		}
	}
	token, err := value(a.claim.Token)
	if err == nil && token == "" {
		err = fmt.Errorf("the entry %s of Secret %s, the token of the claim, is empty", a.claim.Token.Key,
			a.claim.Token.Name)
	}
	if err == nil {
		a.body, err = json.Marshal(claim)
	}
	if err != nil {
		return err
	}
	a.token = token
	return nil
}

func (a *attempt) url(path string) string {
	return "http://" + net.JoinHostPort(a.address, strconv.Itoa(a.port)) + path
}

// ping finds out whose the execd is, without sending the token.
func (a *attempt) ping(ctx context.Context) (who, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url("/ping"), nil)
	if err != nil {
		return waits, err
	}
	challenge := sandboxhttp.NewChallenge()
	request.Header.Set(sandboxhttp.ChallengeHeader, challenge)
	response, err := a.http.Do(request)
	if err != nil {
		return waits, err
	}
	response.Body.Close()
	proof := response.Header.Get(sandboxhttp.ProofHeader)
	switch {
	case response.StatusCode != http.StatusOK:
		return waits, errors.New(sandboxhttp.Quote(response.Status))
	case sandboxhttp.Proves(proof, a.token, challenge):
		return ours, nil
	case proof != "":
		return foreign, nil
	}
	return waits, nil
}

// send makes the claim. After an answer that was lost the next ping says whether it was taken.
func (a *attempt) send(ctx context.Context) batch.ClaimState {
	digest := claims.Digest(a.body)
	signing, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	proof, err := a.keys.SignClaim(signing, a.namespace, a.pod, a.token, digest)
	if err != nil {
		return batch.ClaimState{Message: err.Error()}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url("/claim"), bytes.NewReader(a.body))
	if err != nil {
		return failed("%v", err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set(claims.TokenHeader, a.token)
	request.Header.Set(claims.DigestHeader, digest)
	request.Header.Set(claims.ProofHeader, proof)
	failpoint.Hit("claim-send")
	response, err := a.http.Do(request)
	if err != nil {
		return batch.ClaimState{Message: "the execd of its pod does not answer the claim"}
	}
	failpoint.Hit("claim-sent")
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusAccepted, http.StatusConflict: // or it was by a request whose answer is lost
		a.taken = true
		return batch.ClaimState{Message: "its pod is claimed, and does not serve it yet"}
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusRequestEntityTooLarge:
		return failed("the execd of its pod refuses the claim: %s", reason(response))
	}
	return batch.ClaimState{Message: "the execd of its pod refuses the claim for now: " + reason(response)}
}

// reason is what an answer says, in words that are safe to show.
func reason(response *http.Response) string {
	status := sandboxhttp.Quote(response.Status)
	var problem struct{ Message string }
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil || json.Unmarshal(text, &problem) != nil || problem.Message == "" {
		return status
	}
	return status + ": " + sandboxhttp.Quote(problem.Message)
}

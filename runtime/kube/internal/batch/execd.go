package batch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/wire/sandboxhttp"
)

// maxParallel is how many requests are under way at once for one batch.
const maxParallel = 64

// execdTimeout is how long an execd may take to freeze or thaw its processes before it is asked
// again: longer than it tries itself (execd/internal/freeze), so that it can answer what went
// wrong.
const execdTimeout = 15 * time.Second

// errRefused means that an execd has answered, and has not frozen or thawed its processes.
var errRefused = errors.New("execd refuses")

// errBusy means that an execd has not frozen its processes because its sandbox is not idle, or was
// woken before it slept.
var errBusy = errors.New("the sandbox is not idle")

// codeNotIdle is the code of such an answer.
const codeNotIdle = "NOT_IDLE"

// maxAnswer is how much of such an answer is read, in bytes: it is the sandbox's own.
const maxAnswer = 4096

// inParallel calls do for 0 to n-1, at most maxParallel at a time.
func inParallel(n int, do func(i int)) {
	var wait sync.WaitGroup
	slots := make(chan struct{}, maxParallel)
	for i := range n {
		slots <- struct{}{}
		wait.Go(func() {
			do(i)
			<-slots
		})
	}
	wait.Wait()
}

// callExecd asks one execd to freeze or thaw its processes. Both can be repeated.
func callExecd(ctx context.Context, caller *http.Client, at daemon, operation string) error {
	ctx, cancel := context.WithTimeout(ctx, execdTimeout)
	defer cancel()
	response, err := at.ask(ctx, caller, http.MethodPost, "/"+operation)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		operation, _, _ := strings.Cut(operation, "?")
		var problem struct{ Code, Message string }
		status := sandboxhttp.Quote(response.Status)
		text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
		if err != nil || json.Unmarshal(text, &problem) != nil || problem.Message == "" {
			return fmt.Errorf("%w to %s: %s", errRefused, operation, status)
		}
		if response.StatusCode == http.StatusConflict && problem.Code == codeNotIdle {
			return errBusy
		}
		return fmt.Errorf("%w to %s: %s: %s", errRefused, operation, status,
			sandboxhttp.Quote(problem.Message))
	}
	return nil
}

// ask sends a request without a body to an execd, with the token that it demands.
func (d daemon) ask(ctx context.Context, caller *http.Client, method, path string) (*http.Response, error) {
	url := "http://" + net.JoinHostPort(d.host, strconv.Itoa(v1alpha1.PortExecd)) + path
	request, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return nil, err
	}
	token, err := d.token(ctx)
	if err != nil {
		return nil, err
	}
	if token != "" {
		request.Header.Set(v1alpha1.HeaderExecdToken, token)
	}
	response, err := caller.Do(request)
	if err != nil {
		return nil, fmt.Errorf("execd does not answer: %w", err)
	}
	return response, nil
}

// execdToken returns what reads the token of the execd in a sandbox's pod: that of the claim, of
// the task which runs it, or else of a container. It may be in a Secret. Of two variables of one
// name the last counts.
func (r *reconciler) execdToken(b *v1alpha1.BatchSandbox, number int,
	pod *corev1.Pod) func(context.Context) (string, error) {
	value := func(text string) func(context.Context) (string, error) {
		return func(context.Context) (string, error) { return text, nil }
	}
	if claim := b.Spec.Claim; claim != nil {
		return r.secret(b.Namespace, claim.Token.Name, claim.Token.Key)
	}
	if b.Spec.TaskTemplate != nil {
		template, err := TaskTemplate(b, number)
		if err != nil {
			return func(context.Context) (string, error) { return "", err }
		}
		for _, variable := range slices.Backward(template.Env) {
			switch {
			case variable.Name != v1alpha1.EnvExecdToken:
			case variable.ValueFrom != nil:
				return r.secret(b.Namespace, variable.ValueFrom.SecretKeyRef.Name,
					variable.ValueFrom.SecretKeyRef.Key)
			default:
				return value(variable.Value)
			}
		}
	}
	for i := range pod.Spec.Containers {
		for _, variable := range slices.Backward(pod.Spec.Containers[i].Env) {
			switch {
			case variable.Name != v1alpha1.EnvExecdToken:
			case variable.ValueFrom != nil && variable.ValueFrom.SecretKeyRef != nil:
				return r.secret(b.Namespace, variable.ValueFrom.SecretKeyRef.Name,
					variable.ValueFrom.SecretKeyRef.Key)
			case variable.Value != "":
				return value(variable.Value)
			}
		}
	}
	return value("")
}

// secret returns what reads an entry of a Secret.
func (r *reconciler) secret(namespace, name, key string) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		var secret corev1.Secret
		if err := r.live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name},
			&secret); err != nil {
			return "", fmt.Errorf("the token of execd: %w", err)
		}
		return string(secret.Data[key]), nil
	}
}

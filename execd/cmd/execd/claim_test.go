package main_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"sandbox.internal/test/loopback"

	"sandbox.internal/internal/claims"
	"sandbox.internal/internal/tasks"
	"sandbox.internal/test/wait"
	"sandbox.internal/wire/sandboxhttp"
)

const podUID = "0b9a6c1e-1111-4222-8333-444455556666"

// waiter is a container that waits for its claim, and who may claim it.
type waiter struct {
	key     ed25519.PrivateKey
	command *exec.Cmd
	address string
	http    *http.Client
}

// awaiting starts execd-init as process 1 of a container that waits.
func awaiting(t *testing.T, env ...string) *waiter {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	must(t, err)
	port := loopback.Port(t)
	w := &waiter{key: private, address: fmt.Sprintf("127.0.0.1:%d", port), http: sandboxhttp.NewClient(sandboxhttp.Options{Timeout: wait.Patience()})}
	t.Cleanup(w.http.CloseIdleConnections)
	w.command = first(t, "await", "--host=127.0.0.1", fmt.Sprintf("--port=%d", port), "--graceful-shutdown-timeout=0s")
	w.command.Env = append(w.command.Env, append([]string{
		claims.KeyVariable + "=" + tasks.FormatKey(public), claims.PodVariable + "=" + podUID, "FROM_IMAGE=kept", "GREETING=from the image",
	}, env...)...)
	contain(t, w.command)
	wait.Until(t, "it waits", func() bool {
		response, err := w.http.Get("http://" + w.address + "/ping")
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	return w
}

// request is a claim as the controller makes it.
func (w *waiter) request(t *testing.T, claim claims.Claim) *http.Request {
	t.Helper()
	body, err := json.Marshal(claim)
	must(t, err)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+w.address+"/claim", bytes.NewReader(body))
	must(t, err)
	digest := claims.Digest(body)
	for name, value := range map[string]string{
		"Content-Type": "application/json", claims.TokenHeader: token, claims.DigestHeader: digest,
		claims.ProofHeader: claims.Prove(w.key, podUID, token, digest),
	} {
		request.Header.Set(name, value)
	}
	return request
}

// answer sends a request and returns the status, 0 when there is no answer.
func (w *waiter) answer(request *http.Request) int {
	response, err := w.http.Do(request)
	if err != nil {
		return 0
	}
	response.Body.Close()
	return response.StatusCode
}

func (w *waiter) read(name string) string {
	data, _ := os.ReadFile(filepath.Join(w.command.Dir, name)) // empty while it is not there
	return string(data)
}

// TestClaim: a claimed container is as one that was started so: entrypoint, environment, log, exit
// code, token.
func TestClaim(t *testing.T) {
	t.Parallel()
	w := awaiting(t)
	claim := claims.Claim{
		Entrypoint: []string{"/bin/sh", "-c", `echo "$1|$2|$GREETING|$FROM_IMAGE|$$|$(env | grep -c EXECD)" >said; echo logged; trap "exit 7" TERM; while :; do sleep 1 & wait; done`, "sh", "", "a b"},
		Env:        map[string]string{"GREETING": "line\nbreak", "EXECD_ACCESS_TOKEN": "another"},
	}
	if status := w.answer(w.request(t, claim)); status != http.StatusAccepted {
		t.Fatalf("the claim is answered with %d", status)
	}
	wait.Until(t, "execd proves that it has the token", func() bool { return proves(w.address) })
	wait.Until(t, "the entrypoint has run", func() bool { return w.read("said") != "" })
	if said := w.read("said"); !strings.HasPrefix(said, "|a b|line\nbreak|kept|") || !strings.HasSuffix(said, "|0\n") || strings.Contains(said, "|1|") {
		t.Errorf("the entrypoint says %q", said)
	}
	wait.Until(t, "the entrypoint has logged", func() bool { return w.read("log") != "" })
	if log := w.read("log"); log != "logged\n" {
		t.Errorf("the log of the container is %q", log)
	}
	// A second life: with the token a claim is a conflict, and without it not even that is said.
	again := w.request(t, claim)
	if status := w.answer(again); status != http.StatusConflict {
		t.Errorf("the claim of a sandbox is answered with %d", status)
	}
	stranger := w.request(t, claim)
	stranger.Header.Set(claims.TokenHeader, "another-token")
	if status := w.answer(stranger); status != http.StatusUnauthorized {
		t.Errorf("the claim with another token is answered with %d", status)
	}
	must(t, w.command.Process.Signal(syscall.SIGTERM))
	w.wantEnd(t, 7)
}

// wantEnd waits for the end of the container and compares its status.
func (w *waiter) wantEnd(t *testing.T, status int) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- w.command.Wait() }()
	wait.For(t, "the end of the container", ended)
	if got := w.command.ProcessState.ExitCode(); got != status {
		t.Errorf("the container ends with %d, want %d", got, status)
	}
}

// TestClaimIsTheControllers: a waiting container takes nothing but a claim that was signed for it.
func TestClaimIsTheControllers(t *testing.T) {
	t.Parallel()
	w := awaiting(t)
	claim := claims.Claim{Entrypoint: []string{"/bin/sh", "-c", "echo ran >ran"}}
	_, foreign, err := ed25519.GenerateKey(nil)
	must(t, err)
	for name, change := range map[string]func(*http.Request){
		"no proof": func(r *http.Request) { r.Header.Del(claims.ProofHeader) },
		"no token": func(r *http.Request) { r.Header.Del(claims.TokenHeader) },
		"an empty token": func(r *http.Request) {
			r.Header.Set(claims.TokenHeader, "")
			r.Header.Set(claims.ProofHeader, claims.Prove(w.key, podUID, "", r.Header.Get(claims.DigestHeader)))
		},
		"another token": func(r *http.Request) { r.Header.Set(claims.TokenHeader, "mine") },
		"another pod's": func(r *http.Request) {
			r.Header.Set(claims.ProofHeader, claims.Prove(w.key, "other", token, r.Header.Get(claims.DigestHeader)))
		},
		"another key's": func(r *http.Request) {
			r.Header.Set(claims.ProofHeader, claims.Prove(foreign, podUID, token, r.Header.Get(claims.DigestHeader)))
		},
		"another body": func(r *http.Request) {
			replaced := w.request(t, claims.Claim{Entrypoint: []string{"/bin/sh", "-c", "echo evil >ran"}})
			r.Body, r.ContentLength, r.GetBody = replaced.Body, replaced.ContentLength, replaced.GetBody
		},
		"a command":   func(r *http.Request) { r.URL.Path = "/command" },
		"another way": func(r *http.Request) { r.Method = http.MethodPut },
		"metrics": func(r *http.Request) {
			r.Method, r.URL.Path, r.Body, r.ContentLength = http.MethodGet, "/metrics", nil, 0
		},
	} {
		request := w.request(t, claim)
		change(request)
		if status := w.answer(request); status != http.StatusUnauthorized && !(name == "another way" && status == http.StatusMethodNotAllowed) {
			t.Errorf("%s: answered with %d", name, status)
		}
	}
	// Signed, and nothing that can be started: refused, and the next one is taken.
	for _, broken := range []claims.Claim{{}, {Entrypoint: []string{"a\x00b"}}, {Entrypoint: []string{"true"}, Env: map[string]string{"A=B": "c"}}} {
		if status := w.answer(w.request(t, broken)); status != http.StatusBadRequest {
			t.Errorf("%+v: answered with %d", broken, status)
		}
	}
	if w.read("ran") != "" {
		t.Error("an entrypoint has run")
	}
	w.cutOff(t, claim)
	if status := w.answer(w.request(t, claim)); status != http.StatusAccepted {
		t.Errorf("after all that, the controller's claim is answered with %d", status)
	}
	w.wantEnd(t, 0)
	if w.read("ran") != "ran\n" {
		t.Errorf("the entrypoint has left %q", w.read("ran"))
	}
}

// cutOff sends a claim whose connection ends in the middle of its body: it is none.
func (w *waiter) cutOff(t *testing.T, claim claims.Claim) {
	t.Helper()
	connection, err := net.DialTimeout("tcp", w.address, wait.Patience())
	must(t, err)
	defer connection.Close()
	var text bytes.Buffer
	must(t, w.request(t, claim).Write(&text))
	_, err = connection.Write(text.Bytes()[:text.Len()-5])
	must(t, err)
	must(t, connection.(*net.TCPConn).CloseWrite())
	must(t, connection.SetReadDeadline(wait.Deadline()))
	if answer, err := readAll(connection); err == nil && strings.Contains(answer, " 202 ") {
		t.Errorf("a claim that was cut off is answered with %q", answer)
	}
}

func readAll(connection net.Conn) (string, error) {
	var text bytes.Buffer
	_, err := text.ReadFrom(connection)
	return text.String(), err
}

// TestOneClaim: of claims that come at the same time one is taken.
func TestOneClaim(t *testing.T) {
	t.Parallel()
	w := awaiting(t)
	var accepted atomic.Int32
	var all sync.WaitGroup
	for i := range 8 {
		request := w.request(t, claims.Claim{Entrypoint: []string{"/bin/sh", "-c", fmt.Sprintf("echo %d >>ran; exec sleep 1000", i)}})
		all.Go(func() {
			if w.answer(request) == http.StatusAccepted {
				accepted.Add(1)
			}
		})
	}
	all.Wait()
	wait.Until(t, "the entrypoint has run", func() bool { return w.read("ran") != "" })
	if n := accepted.Load(); n != 1 || len(w.read("ran")) != 2 {
		t.Errorf("%d claims are accepted, and %q has run", n, w.read("ran"))
	}
}

// TestWaitingEnds: a container that waits ends at a signal with 0, with its daemon when that ends,
// and at once where no claim could ever come.
func TestWaitingEnds(t *testing.T) {
	t.Parallel()
	w := awaiting(t)
	must(t, w.command.Process.Signal(syscall.SIGTERM))
	w.wantEnd(t, 0)
	w = awaiting(t)
	kill(t, w.command.Process.Pid, "await")
	w.wantEnd(t, 137)

	for variable, says := range map[string]string{claims.KeyVariable + "=x": claims.KeyVariable, "": claims.KeyVariable} {
		command := first(t, "await", "--host=127.0.0.1", "--port=0")
		command.Env = append(command.Env, variable)
		ends(t, command, 1, nil, []string{says})
	}
	command := first(t, "await", "--port=0", "--", "true")
	ends(t, command, 2, nil, []string{"the claim has the entrypoint"})
	command = first(t, "await", "--port=0")
	public, _, err := ed25519.GenerateKey(nil)
	must(t, err)
	command.Env = append(command.Env, claims.KeyVariable+"="+tasks.FormatKey(public))
	ends(t, command, 1, nil, []string{claims.PodVariable})
}

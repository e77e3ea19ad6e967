package taskexecutor

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"sandbox.internal/internal/tasks"
	"sandbox.internal/test/wait"
)

// TestAccess: an executor with the controller's key serves the controller's proofs for its own pod,
// until the pod is reset.
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
		response, err := (&http.Client{Timeout: wait.Patience()}).Do(request)
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

// TestSlowBody: a proof that a reset has ended the validity of opens nothing to a request that had
// begun before.
func TestSlowBody(t *testing.T) {
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	executor := &Executor{entries: map[string]*entry{}, changed: make(chan struct{})}
	a := &api{executor: executor, access: Access{Key: public, Pod: "pod"}}
	a.renew()
	server := httptest.NewServer(a.guarded(map[string]operation{http.MethodPut: a.put}))
	t.Cleanup(server.Close)
	connection, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	if err := connection.SetDeadline(wait.Deadline()); err != nil {
		t.Fatal(err)
	}
	answers := bufio.NewReader(connection)
	proof := tasks.Prove(key, "pod", a.challenge.Load().(string))
	fmt.Fprintf(connection, "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 17\r\nExpect: 100-continue\r\n%s: %s\r\n\r\n", tasks.TokenHeader, proof)
	if line, err := answers.ReadString('\n'); err != nil || !strings.Contains(line, "100 Continue") {
		t.Fatalf("%q, %v", line, err)
	}
	a.renew()
	fmt.Fprint(connection, `{"command":["x"]}`)
	_, _ = answers.ReadString('\n') // the empty line
	if line, err := answers.ReadString('\n'); err != nil || !strings.Contains(line, "401 Unauthorized") {
		t.Errorf("%q, %v", line, err)
	}
}

// TestLongList: a client can read the list of as many tasks as there may be, whatever their
// messages.
func TestLongList(t *testing.T) {
	executor := &Executor{entries: map[string]*entry{}, changed: make(chan struct{}), version: 1}
	ends := time.Date(2026, 12, 31, 23, 59, 59, 123456789, time.UTC)
	code := 255
	for i := range maxTasks {
		name := fmt.Sprintf("%063d", i)
		executor.entries[name] = &entry{deleting: true, status: tasks.Status{
			Name: name, State: tasks.Succeeded, ExitCode: &code, Reason: tasks.ReasonWaitingForMain, Message: strings.Repeat("\x01ü", 2048),
			StartedAt: &ends, FinishedAt: &ends,
		}}
	}
	server := httptest.NewServer(executor.Handler(Access{}))
	t.Cleanup(server.Close)
	client := &tasks.Client{BaseURL: server.URL}
	list, err := client.List(t.Context())
	if err != nil || len(list.Items) != maxTasks || !strings.HasPrefix(list.Items[7].Message, "\x01ü\x01ü") {
		t.Errorf("%d tasks, %v", len(list.Items), err)
	}
	if one, err := client.Get(t.Context(), fmt.Sprintf("%063d", 7)); err != nil || len(one.Message) != 3*2048 {
		t.Errorf("a message of %d bytes, %v", len(one.Message), err)
	}
}

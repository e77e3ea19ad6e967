package local_test

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/loopback"
	"sandbox.internal/test/wait"
)

// TestWebhooks has the receiver of docs/lifecycle.md verify what a service sends that is killed
// meanwhile.
func TestWebhooks(t *testing.T) {
	t.Parallel()
	const encoded = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
	page, err := os.ReadFile("../../../docs/lifecycle.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "\n```python\n")
	source, _, found := strings.Cut(rest, "\n```")
	address := fmt.Sprintf("127.0.0.1:%d", loopback.Port(t))
	program := strings.Replace(source, `("127.0.0.1", 9000)`, `("127.0.0.1", `+strings.TrimPrefix(address, "127.0.0.1:")+`)`, 1)
	if !found || program == source {
		t.Fatalf("docs/lifecycle.md has no receiver:\n%s", source)
	}
	receiver := wait.Command(t, "python3", "-c", program)
	receiver.Env = append(os.Environ(), "WEBHOOK_SECRET=whsec_"+encoded)
	output, err := receiver.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := receiver.Start(); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var lines []string
	read := make(chan struct{})
	go func() {
		defer close(read)
		for scanner := bufio.NewScanner(output); scanner.Scan(); {
			mu.Lock()
			lines = append(lines, scanner.Text())
			mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		_ = receiver.Process.Kill()
		wait.For(t, "the end of the receiver", read)
		_ = receiver.Wait()
	})
	received := func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(lines)
	}
	wait.Succeeds(t, "the receiver refuses a wrong signature", func() error {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address, strings.NewReader("{}"))
		if err != nil {
			return err
		}
		for name, value := range map[string]string{"Webhook-Id": "evt_1_1", "Webhook-Timestamp": "1", "Webhook-Signature": "v1,AAAA"} {
			request.Header.Set(name, value)
		}
		answer, err := wait.Client().Do(request)
		if err != nil {
			return err
		}
		if answer.Body.Close(); answer.StatusCode != http.StatusUnauthorized {
			return fmt.Errorf("%d", answer.StatusCode)
		}
		return nil
	})

	s := conformance.Start(t, onLocal(newMachines()), conformance.Plan{Program: true, Settings: fmt.Sprintf(
		"[[webhooks]]\nurl = \"http://%s/hook\"\nsecret = \"whsec_%s\"\nallow_private = true\n", address, encoded)})
	has := func(id, to string) func() bool {
		return func() bool {
			return slices.ContainsFunc(received(), func(line string) bool {
				return strings.Contains(line, "'sandboxId': '"+id+"'") && strings.Contains(line, "'to': '"+to+"'")
			})
		}
	}
	state := func() any { return strings.Join(received(), "\n") }
	id := s.Running(t, s.Idle())
	s.Kill() // perhaps before the last events are delivered
	s.Boot(t)
	wait.Until(t, "the receiver has that the sandbox runs", has(id, "Running"), state)
	s.Delete(t, id)
	wait.Until(t, "the receiver has that the sandbox has ended", has(id, "Terminated"), state)

	// One sequence without a gap; a repetition has the id that the event had before.
	sequence := regexp.MustCompile(`^evt_([0-9]+)_[0-9]+ `)
	last, ids := int64(0), map[int64]string{}
	for _, line := range received() {
		match := sequence.FindStringSubmatch(line)
		if match == nil {
			t.Fatalf("no event: %s", line)
		}
		number, err := strconv.ParseInt(match[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if last != 0 && number != last+1 && ids[number] != match[0] {
			t.Errorf("event %d follows event %d", number, last)
		}
		last, ids[number] = number, match[0]
	}
	if text := strings.Join(s.Log.Lines(), "\n"); strings.Contains(text, encoded) || strings.Contains(text, "/hook") {
		t.Error("the secret or the path of the URL is in the log")
	}
	if text := metrics(t, s); !strings.Contains(text, "\nsandbox_webhook_deliveries_total{result=\"delivered\",webhook=\"webhooks[0]\"} ") {
		t.Errorf("no deliveries are counted:\n%s", text)
	}
}

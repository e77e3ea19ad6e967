package clients_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sandbox "sandbox.internal/clients/go"
	"sandbox.internal/server/config"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// watched are the entries of a sandbox's activity as they come, the last state of each.
type watched struct {
	mu      sync.Mutex
	entries map[int64]sandbox.Activity
	delays  map[string][]time.Duration // by client, from the start of a command until its entry came
}

// watchActivity follows the activity of a sandbox until the test ends.
func watchActivity(t *testing.T, box *sandbox.Sandbox) *watched {
	t.Helper()
	w := &watched{entries: map[int64]sandbox.Activity{}, delays: map[string][]time.Duration{}}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for entry, err := range box.WatchActivity(ctx) {
			if err != nil {
				if !errors.Is(err, context.Canceled) {
					t.Errorf("the activity: %v", err)
				}
				return
			}
			came := time.Now()
			w.mu.Lock()
			if _, known := w.entries[entry.ID]; !known {
				w.delays[entry.Client] = append(w.delays[entry.Client], came.Sub(entry.Started))
			}
			w.entries[entry.ID] = entry
			w.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		stop()
		wait.For(t, "the end of the watch", ended)
	})
	return w
}

// with returns the ended entries of commands whose text has a part.
func (w *watched) with(part string) (found []sandbox.Activity) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, entry := range w.entries {
		if entry.Kind == "command" && entry.Ended != nil && strings.Contains(entry.Text, part) {
			found = append(found, entry)
		}
	}
	return found
}

// TestActivityOfEveryClient: what each client runs is in the activity while it is watched, with the
// name of the key, the name of the client and the output.
func TestActivityOfEveryClient(t *testing.T) {
	t.Parallel()
	const (
		key   = "the-key-of-a-pipeline-of-these-tests"
		times = 5
	)
	s := startWithPython(t, conformance.Plan{Keys: []config.Key{
		{Name: "pipeline", SHA256: digest(key), Role: config.RoleUser},
	}})
	id := s.As(t, key).Running(t, conformance.Request(busyboxImage, "sh", "-c", "exec sleep 3600"))
	client, err := sandbox.New(&sandbox.Options{URL: s.URL, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	box, err := client.Connect(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	activity := watchActivity(t, box)

	environment := []string{"SANDBOX_URL=" + s.URL, "SERVICE_API_KEY=" + key}
	commandLine := newCommandLine(t, s.URL)
	commandLine.env = append(commandLine.env, "SERVICE_API_KEY="+key)
	agent := overHTTP(t, s.URL, key)
	line := func(of string, i int) string { return fmt.Sprintf("echo said-by-%s-$((%d+1))", of, i) }
	for _, c := range []struct {
		of, client string // its User-Agent begins so
		run        func()
	}{
		{"go", "sandbox-go", func() {
			for i := range times {
				if _, err := box.Commands.Run(ctx, line("go", i), nil); err != nil {
					t.Fatal(err)
				}
			}
		}},
		{"cli", "sandbox-cli", func() {
			for i := range times {
				commandLine.must(t, "exec", id, "--", "sh", "-c", line("cli", i))
			}
		}},
		{"mcp", "sandbox-mcp (test 1)", func() {
			for i := range times {
				agent.call("run_command", map[string]any{"sandbox": id, "command": line("mcp", i)})
			}
		}},
		{"python", "sandboxes-python", func() {
			directory := conformance.CopyOf(t, pythonClient)
			conformance.Tool(t, directory, append(environment, "PYTHONPATH="+filepath.Join(directory, "src")), pythonHere(t), "-c",
				fmt.Sprintf(`
from sandboxes import Client
with Client() as client:
    sandbox = client.get(%q)
    for i in range(%d):
        sandbox.commands.run(f"echo said-by-python-$(({i}+1))")
`, id, times))
		}},
		{"typescript", "sandbox-typescript", func() {
			directory := buildTypeScript(t)
			conformance.Tool(t, directory, environment, "node", "--input-type=module", "-e", fmt.Sprintf(`
import { Client } from "@sandbox.internal/sdk";
const sandbox = await new Client().connect(%q);
for (let i = 0; i < %d; i++) await sandbox.commands.run("echo said-by-typescript-$((" + i + "+1))");
`, id, times))
		}},
	} {
		c.run()
		var entries []sandbox.Activity
		wait.Until(t, "the activity has the commands of "+c.of, func() bool {
			entries = activity.with("said-by-" + c.of + "-")
			return len(entries) == times
		})
		var output string
		for _, entry := range entries {
			if entry.Key != "pipeline" || !strings.HasPrefix(entry.Client, c.client) ||
				entry.State != sandbox.ActivitySucceeded || entry.Exit == nil || *entry.Exit != 0 {
				t.Errorf("%s: the entry is %+v", c.of, entry)
			}
			command, err := box.Commands.Connect(ctx, entry.Operation)
			if err != nil {
				t.Fatalf("%s: %v", c.of, err)
			}
			result, err := command.Wait(ctx, nil)
			if err != nil {
				t.Fatalf("%s: %v", c.of, err)
			}
			output += result.Stdout
		}
		for i := range times {
			if want := fmt.Sprintf("said-by-%s-%d\n", c.of, i+1); !strings.Contains(output, want) {
				t.Errorf("%s: the outputs are %q, without %q", c.of, output, want)
			}
		}
	}
	activity.mu.Lock()
	defer activity.mu.Unlock()
	for client, delays := range activity.delays {
		slices.Sort(delays)
		t.Logf("%-24s %d entries, each %s after the start of its command (median), at most %s", client,
			len(delays), delays[len(delays)/2], delays[len(delays)-1])
	}
}

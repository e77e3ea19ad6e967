package e2e_test

import (
	"os"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"sandbox.internal/server/api"
	"sandbox.internal/server/app"
	"sandbox.internal/server/config"
)

// TestTwoServersOnOneEngine has one service lose its database and take up its sandboxes from labels, beside another one at work.
func TestTwoServersOnOneEngine(t *testing.T) {
	t.Parallel()
	quiet, crashing := start(t, plan{}), start(t, plan{program: true})
	running, paused := quiet.running(t, idle()), quiet.running(t, idle())
	quiet.enter(t, running).want(t, "echo kept > /tmp/note", "")
	quiet.pause(t, paused)
	own := crashing.running(t, idle())
	before := map[string]string{}
	for _, container := range quiet.containers(t) {
		before[container.ID] = string(container.Status)
	}
	if len(before) != 2 {
		t.Fatalf("the quiet service has the containers %v", before)
	}

	for range 2 {
		crashing.kill()
		if err := os.RemoveAll(crashing.folder); err != nil {
			t.Fatal(err)
		}
		passing := quiet.create(t, idle()) // while the other recovers
		crashing.boot(t)
		crashing.await(t, own, "Running")
		if got := ids(crashing.everything(t)); len(got) != 1 || got[0] != own {
			t.Errorf("the one without a database knows %v, its own is %s", got, own)
		}
		quiet.await(t, passing, "Running")
		quiet.delete(t, passing)
		quiet.await(t, passing, "Terminated")
	}
	crashing.delete(t, own)
	crashing.await(t, own, "Terminated")

	quiet.enter(t, running).want(t, "cat /tmp/note", "kept\n")
	if got := quiet.get(t, paused).Status; got.State != "Paused" {
		t.Errorf("the paused one is %s (%s)", got.State, got.Message)
	}
	for _, container := range quiet.containers(t) {
		if before[container.ID] != string(container.Status) {
			t.Errorf("container %s is %s, it was %q", container.Name, container.Status, before[container.ID])
		}
	}
}

// TestSecondServerIsRefused starts a service on what belongs to one that runs: its records, and its name at the engine.
func TestSecondServerIsRefused(t *testing.T) {
	t.Parallel()
	s := start(t, plan{program: true})
	id := s.running(t, idle())
	for name, c := range map[string]struct {
		second service
		says   []string
	}{
		"same records":  {service{instance: s.instance + "-2", folder: s.folder}, []string{s.folder, "in use by another process"}},
		"same instance": {service{instance: s.instance, folder: t.TempDir()}, []string{"server.instance", s.instance, "another service on this machine"}},
	} {
		t.Run(name, func(t *testing.T) {
			c.second.file = t.TempDir() + "/sandbox.toml"
			if err := os.WriteFile(c.second.file, []byte(c.second.settings(plan{})), 0o600); err != nil {
				t.Fatal(err)
			}
			cfg, err := config.Load(c.second.file, os.Getenv)
			if err != nil {
				t.Fatal(err)
			}
			_, err = app.New(t.Context(), cfg, api.Version{}, zerolog.Nop())
			if err == nil {
				t.Fatal("the second service starts")
			}
			for _, words := range c.says {
				if !strings.Contains(err.Error(), words) {
					t.Errorf("%q does not say %q", err, words)
				}
			}
		})
	}
	s.enter(t, id).want(t, "echo untouched", "untouched\n")
}

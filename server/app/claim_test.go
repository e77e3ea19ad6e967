package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandbox.internal/server/config"
)

func instance(name, engine string) config.Config {
	cfg := config.Default(func(string) string { return "" })
	cfg.Server.Instance, cfg.Environment.DockerHost = name, engine
	return cfg
}

// TestClaim: one service of an instance for each engine, by whatever name the engine goes, until
// the claim is closed.
func TestClaim(t *testing.T) {
	directory := t.TempDir()
	socket, link := filepath.Join(directory, "engine.sock"), filepath.Join(directory, "link.sock")
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(socket, link); err != nil {
		t.Fatal(err)
	}
	first, err := claim(instance("claimed", "unix://"+socket))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := claim(instance("claimed", "unix://"+link)); err == nil || !strings.Contains(err.Error(), "server.instance: another service on this machine") {
		t.Errorf("a second one: %v", err)
	}
	for name, cfg := range map[string]config.Config{
		"another instance": instance("other", "unix://"+socket),
		"another engine":   instance("claimed", "unix://"+filepath.Join(directory, "other.sock")),
	} {
		other, err := claim(cfg)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		other.Close()
	}
	first.Close()
	again, err := claim(instance("claimed", "unix://"+socket))
	if err != nil {
		t.Fatalf("once the first has ended: %v", err)
	}
	again.Close()
}

// TestClaimIsNoSocket: the kernel's abstract name space is open to a sandbox that shares the host's
// network.
func TestClaimIsNoSocket(t *testing.T) {
	before, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		t.Fatal(err)
	}
	held, err := claim(instance("no-socket", "unix:///nowhere/"+t.Name()))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	after, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		t.Fatal(err)
	}
	count := func(text []byte) int { return strings.Count(string(text), "@sandbox.internal/instance/") }
	if count(after) > count(before) {
		t.Error("the claim is a socket in the abstract name space")
	}
}

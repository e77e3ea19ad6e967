// Package compose_test holds the Compose file against the Compose specification, by the loader that
// `docker compose` itself uses, and its configuration against the service's own rules.
package compose_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/server/config"
)

// project is what the tests look at of a loaded Compose file.
type project struct {
	Name     string
	Services map[string]service
	Secrets  map[string]struct{ File string }
}

type service struct {
	Image, User, Restart string
	Command              []string
	Environment          map[string]any
	NetworkMode          string   `json:"network_mode"`
	ReadOnly             bool     `json:"read_only"`
	Privileged           bool     `json:"privileged"`
	CapDrop              []string `json:"cap_drop"`
	CapAdd               []string `json:"cap_add"`
	SecurityOpt          []string `json:"security_opt"`
	Secrets              []struct{ Source, Target string }
	Volumes              []struct {
		Type, Source, Target string
		ReadOnly             bool `json:"read_only"`
	}
}

// load loads a Compose file with variables, beside a file .env.
func load(t *testing.T, compose, env string, variables ...string) (project, error) {
	t.Helper()
	const loader = "testdata/compose"
	for _, file := range []string{"main.go", "go.mod", "go.sum"} {
		_ = read(t, filepath.Join(loader, file)) // makes it an input of this test
	}
	directory := t.TempDir()
	for name, content := range map[string]string{"compose.yaml": compose, ".env": env} {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var failure bytes.Buffer
	command := exec.CommandContext(t.Context(), "go", "run", "-trimpath", "-buildvcs=false",
		"-gcflags=all=-dwarf=false", ".", filepath.Join(directory, "compose.yaml"))
	command.Dir, command.Stderr = loader, &failure
	command.Env = append(os.Environ(), append(variables, "CGO_ENABLED=0", "GOWORK=off")...)
	output, err := command.Output()
	if err != nil {
		t.Logf("%s", failure.String())
		return project{}, err
	}
	var loaded project
	if err := json.Unmarshal(output, &loaded); err != nil {
		t.Fatal(err)
	}
	return loaded, nil
}

// TestCompose loads the file as it is, with env.example as .env, and with every variable changed.
func TestCompose(t *testing.T) {
	const socket = "/var/run/docker.sock"
	compose := read(t, "compose.yaml")
	plain, err := load(t, compose, "")
	if err != nil {
		t.Fatal(err)
	}
	if len(plain.Services) != 1 || plain.Name != "sandbox" {
		t.Errorf("without a profile %q has %d services", plain.Name, len(plain.Services))
	}
	same, err := load(t, compose, read(t, "env.example"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := same.Services["server"], plain.Services["server"]; got.Image != want.Image ||
		len(same.Services) != 1 || got.Volumes[2] != want.Volumes[2] {
		t.Errorf("env.example changes the defaults: %+v, not %+v", same, plain)
	}

	all, err := load(t, compose, "COMPOSE_PROFILES=gateway\nSANDBOX_GATEWAY_MODE=header\n",
		"SANDBOX_SERVER_IMAGE=example.com/server:1", "SANDBOX_INGRESS_IMAGE=example.com/ingress:1",
		"SANDBOX_KEYS=/etc/keys", "DOCKER_SOCKET=/run/user/1000/docker.sock")
	if err != nil {
		t.Fatal(err)
	}
	server, gateway := all.Services["server"], all.Services["gateway"]
	if len(all.Services) != 2 || server.Image != "example.com/server:1" ||
		gateway.Image != "example.com/ingress:1" || !slices.Contains(gateway.Command, "--mode=header") {
		t.Errorf("%+v", all)
	}
	for name, want := range map[string]string{"api.key": "/etc/keys/api.key", "signing.key": "/etc/keys/signing.key"} {
		if got := all.Secrets[name].File; got != want {
			t.Errorf("%s is %s, not %s", name, got, want)
		}
	}
	for name, s := range all.Services {
		if s.NetworkMode != "host" || !s.ReadOnly || s.Privileged || s.User != "0:0" ||
			!slices.Equal(s.CapDrop, []string{"ALL"}) || !slices.Equal(s.CapAdd, []string{"DAC_READ_SEARCH"}) ||
			!slices.Equal(s.SecurityOpt, []string{"no-new-privileges:true"}) || s.Restart != "unless-stopped" {
			t.Errorf("%s is not confined: %+v", name, s)
		}
		if len(s.Environment) > 0 {
			t.Errorf("%s has variables, which `docker inspect` shows: %v", name, s.Environment)
		}
		if len(s.Secrets) != 2 {
			t.Errorf("%s has the secrets %v", name, s.Secrets)
		}
		for _, volume := range s.Volumes {
			if volume.Target == socket && (name != "server" || volume.Source != "/run/user/1000/docker.sock") {
				t.Errorf("%s has the socket %s", name, volume.Source)
			}
		}
	}
	if len(server.Volumes) != 3 || len(gateway.Volumes) != 0 {
		t.Errorf("volumes: %v and %v", server.Volumes, gateway.Volumes)
	}
	for _, argument := range gateway.Command {
		if address, listens := strings.CutPrefix(argument, "--listen="); listens && !strings.HasPrefix(address, "127.0.0.1:") {
			t.Errorf("the gateway listens at %s", address)
		}
	}
}

// TestLoaderRefuses shows that what does not comply is found.
func TestLoaderRefuses(t *testing.T) {
	wrong := strings.Replace(read(t, "compose.yaml"), "read_only: true", "readonly: true", 1)
	if _, err := load(t, wrong, ""); err == nil {
		t.Error("an attribute that the specification does not have is accepted")
	}
}

// TestConfiguration has the service's own rules look at sandbox.toml, with keys where the Compose
// file puts them.
func TestConfiguration(t *testing.T) {
	file := read(t, "sandbox.toml")
	directory := t.TempDir()
	for _, name := range []string{"api.key", "signing.key"} {
		path := filepath.Join(directory, name)
		if err := os.WriteFile(path, []byte(strings.Repeat("k", 64)), 0o600); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(file, `"/run/secrets/`+name+`"`) {
			t.Errorf("sandbox.toml does not use the secret %s", name)
		}
		file = strings.ReplaceAll(file, "/run/secrets/"+name, path)
	}
	path := filepath.Join(directory, "sandbox.toml")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	loaded, err := config.Load(path, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	if warnings := loaded.Warnings(); len(warnings) > 0 {
		t.Errorf("warnings: %q", warnings)
	}
	if loaded.Server.Host != "127.0.0.1" || loaded.Server.DataDir != "/var/lib/sandbox-server" {
		t.Errorf("%+v", loaded.Server)
	}
	if limits := loaded.Server.Limits; limits.DefaultCPU == "" || limits.DefaultMemory == "" {
		t.Errorf("a request without resourceLimits gets no bounds: %+v", limits)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

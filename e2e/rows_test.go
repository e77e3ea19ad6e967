package e2e_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandbox.internal/e2e/lives"
	"sandbox.internal/server/config"
)

// TestRowsOfConfiguration follows the document's table row by row, as the tests of e2e/lives/rows*.go do with the others.
func TestRowsOfConfiguration(t *testing.T) {
	t.Parallel()
	defaults := config.Default(os.Getenv)
	t.Run("row lifecycle/configuration/server.host", func(t *testing.T) {
		if defaults.Server.Host != "0.0.0.0" {
			t.Errorf("the default is %s", defaults.Server.Host)
		}
		s := start(t, lives.Plan{})
		if !strings.HasPrefix(s.URL, "http://127.0.0.1:") {
			t.Errorf("with host 127.0.0.1 it listens at %s", s.URL)
		}
	})
	t.Run("row lifecycle/configuration/server.port", func(t *testing.T) {
		if defaults.Server.Port != 8080 {
			t.Errorf("the default is %d", defaults.Server.Port)
		}
	})
	t.Run("row lifecycle/configuration/server.api_key", func(t *testing.T) {
		s := start(t, lives.Plan{})
		lives.WantProblem(t, s.As(t, "").Send(t, http.MethodGet, "/v1/sandboxes", ""), 401, "UNAUTHORIZED", lives.KeyHeader)
	})
	t.Run("row lifecycle/configuration/runtime.type", func(t *testing.T) {
		for _, settings := range []string{"[runtime]\nexecd_image = \"x\"\n", "[runtime]\ntype = \"podman\"\nexecd_image = \"x\"\n"} {
			file := filepath.Join(t.TempDir(), "sandbox.toml")
			if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := config.Load(file, os.Getenv); err == nil || !strings.Contains(err.Error(), "runtime.type") || !strings.Contains(err.Error(), "docker") {
				t.Errorf("%q: %v", settings, err)
			}
		}
	})
	t.Run("row lifecycle/configuration/runtime.execd_image", func(t *testing.T) {
		s := start(t, lives.Plan{})
		s.Enter(t, s.Running(t, idle())).Want(t, "test -x /opt/sandbox/execd && echo there", "there\n")
	})
	t.Run("row lifecycle/configuration/docker.api_timeout", func(t *testing.T) {
		if got := defaults.Docker.APITimeout; got != 180 {
			t.Errorf("the default is %d s", got)
		}
	})
	t.Run("row lifecycle/configuration/docker.network_mode", func(t *testing.T) {
		if defaults.Docker.NetworkMode != config.NetworkBridge {
			t.Errorf("the default is %s", defaults.Docker.NetworkMode)
		}
		err := refusedStart(t, "[docker]\nnetwork_mode = \"overlay\"")
		if err == nil {
			t.Fatal("a third mode is let in")
		}
		lives.Contains(t, err.Error(), "docker.network_mode", "bridge", "host")
	})
	t.Run("row lifecycle/configuration/docker.host_ip", func(t *testing.T) {
		s := start(t, lives.Plan{Settings: "[docker]\nhost_ip = \"127.0.0.2\""})
		if got := s.Endpoint(t, s.Running(t, idle()), lives.DaemonPort).Endpoint; !strings.HasPrefix(got, "127.0.0.2:") {
			t.Errorf("the endpoint is %s", got)
		}
	})
}

package e2e_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandbox.internal/test/loopback"

	"github.com/google/uuid"

	"sandbox.internal/server/config"
	"sandbox.internal/test/e2e/conformance"
)

// TestRowsOfConfiguration follows the document's table row by row, as the tests of
// test/e2e/conformance/rows*.go do with the others.
func TestRowsOfConfiguration(t *testing.T) {
	t.Parallel()
	defaults := config.Default(os.Getenv)
	t.Run("row lifecycle/configuration/server.host", func(t *testing.T) {
		if defaults.Server.Host != "0.0.0.0" {
			t.Errorf("the default is %s", defaults.Server.Host)
		}
		s := start(t, conformance.Plan{})
		if !strings.HasPrefix(s.URL, "http://127.0.0.1:") {
			t.Errorf("with host 127.0.0.1 it listens at %s", s.URL)
		}
	})
	t.Run("row lifecycle/configuration/server.port", func(t *testing.T) {
		if defaults.Server.Port != 8080 {
			t.Errorf("the default is %d", defaults.Server.Port)
		}
		port, s := loopback.Port(t), start(t, conformance.Plan{})
		s.Halt(t)
		text, err := os.ReadFile(s.File)
		chosen := strings.Replace(string(text), "\nport = 0\n", fmt.Sprintf("\nport = %d\n", port), 1)
		if err := errors.Join(err, os.WriteFile(s.File, []byte(chosen), 0o600)); err != nil {
			t.Fatal(err)
		}
		s.Boot(t)
		if want := fmt.Sprintf("http://127.0.0.1:%d", port); s.URL != want {
			t.Errorf("the service listens at %s, not at %s", s.URL, want)
		}
	})
	t.Run("row lifecycle/configuration/server.api_key", func(t *testing.T) {
		s := start(t, conformance.Plan{})
		conformance.WantProblem(t, s.As(t, "").Send(t, http.MethodGet, "/v1/sandboxes", ""), 401,
			"UNAUTHORIZED", conformance.KeyHeader)
	})
	t.Run("row lifecycle/configuration/runtime.type", func(t *testing.T) {
		for _, settings := range []string{"[runtime]\nexecd_image = \"x\"\n",
			"[runtime]\ntype = \"podman\"\nexecd_image = \"x\"\n"} {
			file := filepath.Join(t.TempDir(), "sandbox.toml")
			if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := config.Load(file, os.Getenv); err == nil ||
				!strings.Contains(err.Error(), "runtime.type") ||
				!strings.Contains(err.Error(), "docker") {
				t.Errorf("%q: %v", settings, err)
			}
		}
	})
	t.Run("row lifecycle/configuration/runtime.execd_image", func(t *testing.T) {
		// An image like no other: a sandbox gets the daemon's directory of the image that the
		// configuration names.
		name := "e2e-execd-" + uuid.NewString()[:8]
		mark := filepath.Join(t.TempDir(), "mark")
		if err := os.WriteFile(mark, []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
		dockerCLI(t, "create", "--name", name, execdImage, "none")
		t.Cleanup(func() { dockerCLI(t, "rm", "-f", name) })
		dockerCLI(t, "cp", mark, name+":/opt/sandbox/mark")
		dockerCLI(t, "commit", name, name+":dev")
		t.Cleanup(func() { dockerCLI(t, "rmi", "-f", name+":dev") })
		backend := onDocker(openEngine(t, os.Getenv("DOCKER_HOST")))
		backend.Settings = func(*testing.T, string, conformance.Plan) string {
			return fmt.Sprintf("[runtime]\ntype = \"docker\"\nexecd_image = %q\n", name+":dev")
		}
		id := strings.TrimSpace(dockerCLI(t, "inspect", "-f", "{{.Id}}", name+":dev"))
		t.Cleanup(func() { // the service keeps the volume that it fills for the services after it
			volume := strings.TrimSpace(dockerCLI(t, "volume", "ls", "-q", "--filter",
				"label=sandbox.internal/execd-image="+id))
			dockerCLI(t, "volume", "rm", volume)
		})
		s := conformance.Start(t, backend, conformance.Plan{})
		s.Enter(t, s.Running(t, idle())).Want(t, "cat /opt/sandbox/mark", name)
	})
	t.Run("row lifecycle/configuration/docker.api_timeout: by default", func(t *testing.T) {
		if got := defaults.Docker.APITimeout; got != 180 {
			t.Errorf("the default is %d s", got)
		}
	})
	t.Run("row lifecycle/configuration/docker.network_mode", func(t *testing.T) {
		if defaults.Sandbox.NetworkMode != config.NetworkBridge {
			t.Errorf("the default is %s", defaults.Sandbox.NetworkMode)
		}
		err := refusedStart(t, "[docker]\nnetwork_mode = \"overlay\"")
		if err == nil {
			t.Fatal("a third mode is accepted")
		}
		conformance.Contains(t, err.Error(), "docker.network_mode", "bridge", "host")
	})
	t.Run("row lifecycle/configuration/docker.host_ip", func(t *testing.T) {
		s := start(t, conformance.Plan{Settings: "[docker]\nhost_ip = \"127.0.0.2\""})
		if got := s.Endpoint(t, s.Running(t, idle()),
			conformance.DaemonPort).Endpoint; !strings.HasPrefix(got, "127.0.0.2:") {
			t.Errorf("the endpoint is %s", got)
		}
	})
}

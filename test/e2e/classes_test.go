package e2e_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"sandbox.internal/server/api"
	"sandbox.internal/server/app"
	"sandbox.internal/server/config"
	"sandbox.internal/test/e2e/conformance"
)

// classSettings are settings with one runtime class.
func classSettings(handler, more string) string {
	return "[[runtime.classes]]\nname = \"chosen\"\nhandler = \"" + handler + "\"\n" + more
}

// TestRuntimeClassIsTheEnginesRuntime: the engine runs the sandbox with the class's handler, and
// its sidecar with the default.
func TestRuntimeClassIsTheEnginesRuntime(t *testing.T) {
	t.Parallel()
	egress := "[egress]\nimage = \"" + egressImage + "\"\n"
	class := "chosen"
	for name, sidecar := range map[string]bool{"with a sidecar": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			more := ""
			if sidecar {
				more = "egress_sidecar = true\n"
			}
			s := start(t, conformance.Plan{Settings: classSettings(otherRuntime, more) + egress})
			request := idle()
			request.RuntimeClass = &class
			id := s.Running(t, request)
			s.Enter(t, id).Want(t, "echo $((6 * 7))", "42\n")
			if got := runtimeOf(t, "sandbox-"+id); got != otherRuntime {
				t.Errorf("the sandbox runs with %q, want %q", got, otherRuntime)
			}
			if got := len(s.containers(t)) == 2; got != sidecar {
				t.Errorf("that there is a sidecar is %t", got)
			}
			if !sidecar {
				refused := s.Body(t, map[string]any{"runtimeClass": class,
					"networkPolicy": map[string]any{"defaultAction": "deny"}})
				conformance.WantProblem(t, s.Send(t, http.MethodPost, "/v1/sandboxes", refused), 400,
					"INVALID_REQUEST_BODY", "networkPolicy", class, "egress_sidecar")
				return
			}
			if got := runtimeOf(t, "sandbox-"+id+"-egress"); got == otherRuntime || got == "" {
				t.Errorf("the sidecar runs with %q", got)
			}
		})
	}
}

func runtimeOf(t *testing.T, container string) string {
	t.Helper()
	return strings.TrimSpace(dockerCLI(t, "inspect", "--format", "{{.HostConfig.Runtime}}", container))
}

// TestUnknownHandlerIsRefusedAtTheStart: not the first create finds it.
func TestUnknownHandlerIsRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	const handler = "no-such-runtime"
	file := filepath.Join(t.TempDir(), "sandbox.toml")
	text := conformance.Configuration("e2e-no-handler", t.TempDir(), runtimeSettings(),
		conformance.Plan{Settings: classSettings(handler, "")})
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(file, os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	_, err = app.New(t.Context(), cfg, api.Version{}, zerolog.Nop())
	if err == nil || !strings.Contains(err.Error(), "runtime.classes: chosen: the handler \""+handler) {
		t.Errorf("the start gave %v", err)
	}
}

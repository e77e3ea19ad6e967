package e2e_test

import (
	"context"
	"os"
	"os/exec"
	"testing"

	"github.com/rs/zerolog"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/runtime/docker"
	"sandbox.internal/runtime/engine"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// service is a lifecycle service under test, and the engine that its sandboxes run on.
type service struct {
	*conformance.Service
	engine *docker.Engine
}

// start returns a running service. At the end of the test everything that it has made is deleted
// through it, and must be gone.
func start(t *testing.T, p conformance.Plan) *service {
	t.Helper()
	host, other := p.Env["DOCKER_HOST"]
	if !other {
		host = os.Getenv("DOCKER_HOST")
	}
	containers := openEngine(t, host)
	return &service{conformance.Start(t, onDocker(containers), p), containers}
}

// openEngine is closed at the end of the test, after its services have ended.
func openEngine(t *testing.T, host string) *docker.Engine {
	t.Helper()
	containers, err := docker.New(docker.Options{Host: host, Logger: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { containers.Close() })
	return containers
}

func (s *service) label() map[string]string {
	return map[string]string{"sandbox.internal/instance": s.Instance}
}

// containers are those of this service, in any status.
func (s *service) containers(t *testing.T) []engine.Container {
	t.Helper()
	list, err := s.engine.List(wait.Context(t), s.label())
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// idle asks for a sandbox that does nothing by itself.
func idle() lifecycle.CreateSandboxRequest { return conformance.Request(busyboxImage, "sleep", "1000") }

// bootUntil runs the service until ctx ends, and kills it then, wherever in its start it is.
func (s *service) bootUntil(ctx context.Context, t *testing.T) {
	t.Helper()
	command := exec.CommandContext(ctx,
		conformance.Build(t, "sandbox.internal/server/cmd/sandbox-server"), "--config", s.File)
	if err := command.Start(); err != nil {
		if ctx.Err() == nil { // else the end came before the start
			t.Error(err)
		}
		return
	}
	_ = command.Wait() // killed
}

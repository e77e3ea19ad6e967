package e2e_test

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"sandbox.internal/runtime/docker"
	"sandbox.internal/runtime/engine"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// TestConformance runs the table of what every backend has in common.
func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, onDocker(openEngine(t, os.Getenv("DOCKER_HOST"))))
}

// runtimeSettings choose the engine in a configuration.
func runtimeSettings() string {
	return fmt.Sprintf("[runtime]\ntype = \"docker\"\nexecd_image = %q\n", execdImage)
}

// otherRuntime is a runtime that every Docker Engine has, and another name than that of its
// default.
const otherRuntime = "io.containerd.runc.v2"

// onDocker is the host backend, with an engine.
func onDocker(containers *docker.Engine) conformance.Backend {
	list := func(t *testing.T, instance, id string) []engine.Container {
		labels := map[string]string{"sandbox.internal/instance": instance}
		if id != "" {
			labels["sandbox.internal/id"] = id
		}
		found, err := containers.List(wait.Context(t), labels)
		if err != nil {
			t.Error(err)
		}
		return found
	}
	return conformance.Backend{
		Images: conformance.Images{Busybox: busyboxImage, Base: baseImage},
		Settings: func(*testing.T, string, conformance.Plan) string {
			return runtimeSettings()
		},
		Leftovers: func(t *testing.T, instance, id string) []string {
			var names []string
			for _, container := range list(t, instance, id) {
				names = append(names,
					fmt.Sprintf("container %s (%s)", container.Name, container.Status))
			}
			return names
		},
		Clear: func(t *testing.T, instance string) {
			for _, container := range list(t, instance, "") {
				if err := containers.Remove(wait.Context(t), container.ID); err != nil {
					t.Error(err)
				}
			}
		},
		Destroy: func(t *testing.T, _, id string) {
			if err := containers.Remove(wait.Context(t), "sandbox-"+id); err != nil {
				t.Fatal(err)
			}
		},
		// A volume that is not there is made when a sandbox first names it.
		Claim: func(t *testing.T, s *conformance.Service) string {
			claim := s.Instance + "-claim"
			t.Cleanup(func() {
				s.DeleteAll(t) // a volume in use cannot be removed
				dockerCLI(t, "volume", "rm", claim)
			})
			return claim
		},
		RuntimeHandler: func(*testing.T) string { return otherRuntime },
		Sleeps:         true,
		InternalErrors: takeTablesAway,
		Snapshots:      true,
		RemoveSnapshots: func(t *testing.T, instance string) {
			ctx := wait.Context(t)
			snapshots, err := containers.ListSnapshots(ctx)
			for _, s := range snapshots {
				if s.Labels["sandbox.internal/instance"] == instance {
					err = errors.Join(err, containers.RemoveSnapshot(ctx, s.Name))
				}
			}
			if err != nil {
				t.Error(err)
			}
		},
		Unprovoked: map[string]string{
			"getSandbox 500":    "it reads memory alone",
			"listSandboxes 500": "it reads memory alone",
			"getEndpoint 500":   "it reads memory alone",
			"getActivity 500":   "it reads memory alone",
			"watchActivity 500": "it reads memory alone",
			"getLogs 503":       "the engine would have to be away",

			"streamHostLoad 501": "the engine is on the service's machine",

			"getNetworkPolicy 500":     "the sidecar would have to answer nonsense",
			"listNetworkDecisions 500": "the sidecar would have to answer nonsense",
			"proposeNetworkPolicy 500": "the sidecar would have to answer nonsense",
		},
		Instead: map[string]conformance.Replacement{
			"EventsSurviveKills": {
				Because: "here the ids of events have no gaps",
				Test: func(t *testing.T, b conformance.Backend) {
					conformance.EventsSurviveKills(t, b,
						func(last, next int64) bool { return next == last+1 })
				},
			},
		},
	}
}

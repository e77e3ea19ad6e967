package sandbox_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	sandbox "sandbox.internal/clients/go"
	"sandbox.internal/runtime/docker"
	"sandbox.internal/runtime/engine"
	"sandbox.internal/test/e2e/lives"
)

const (
	busybox = "sandbox/busybox:dev"
	python  = "sandbox/python:dev"

	// patience bounds every wait for something that is expected to happen.
	patience = 2 * time.Minute
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start returns a real service whose sandboxes run on the Docker Engine.
func start(t *testing.T, plan lives.Plan) *lives.Service {
	t.Helper()
	containers, err := docker.New(docker.Options{Host: os.Getenv("DOCKER_HOST"),
		Logger: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = containers.Close() })
	list := func(t *testing.T, instance, id string) []engine.Container {
		labels := map[string]string{"sandbox.internal/instance": instance}
		if id != "" {
			labels["sandbox.internal/id"] = id
		}
		found, err := containers.List(context.Background(), labels)
		if err != nil {
			t.Error(err)
		}
		return found
	}
	return lives.Start(t, lives.Backend{
		Images: lives.Images{Busybox: busybox},
		Settings: func(*testing.T, string, lives.Plan) string {
			return "[runtime]\ntype = \"docker\"\nexecd_image = \"sandbox/execd:dev\"\n" +
				"[egress]\nimage = \"sandbox/egress:dev\"\n"
		},
		Leftovers: func(t *testing.T, instance, id string) (names []string) {
			for _, container := range list(t, instance, id) {
				names = append(names, fmt.Sprintf("container %s", container.Name))
			}
			return names
		},
		Clear: func(t *testing.T, instance string) {
			for _, container := range list(t, instance, "") {
				if err := containers.Remove(context.Background(), container.ID); err != nil {
					t.Error(err)
				}
			}
		},
	}, plan)
}

// dial returns a client of the service, as its administrator.
func dial(t *testing.T, options sandbox.Options) *sandbox.Client {
	t.Helper()
	if options.Key == "" {
		options.Key = lives.AdminKey
	}
	client, err := sandbox.New(&options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// create returns a sandbox that is Running and is deleted with the service.
func create(t *testing.T, client *sandbox.Client, image string) *sandbox.Sandbox {
	t.Helper()
	box, err := client.Create(limited(t), &sandbox.CreateOptions{Image: image, Memory: "512Mi",
		Metadata: map[string]string{"name": t.Name()}, Env: map[string]string{"GREETING": "hello"}})
	if err != nil {
		t.Fatal(err)
	}
	return box
}

// limited is the test's context with an end.
func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

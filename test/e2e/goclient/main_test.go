package goclient_test

import (
	"context"
	"os"
	"testing"

	"go.uber.org/goleak"

	sandbox "sandbox.internal/clients/go"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/e2e/conformance/localengine"
	"sandbox.internal/test/wait"
)

const (
	busybox = localengine.BusyboxImage
	python  = localengine.PythonImage
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		localengine.Remove()
		conformance.RemoveBuilt()
		os.Exit(code)
	}))
}

// start returns a real service whose sandboxes run on its own engine.
func start(t *testing.T, plan conformance.Plan) *conformance.Service {
	t.Helper()
	on := localengine.New("crun")
	on.Python = true
	plan.Settings += "[egress]\nimage = \"" + localengine.EgressImage + "\"\n"
	return conformance.Start(t, on.Backend(), plan)
}

// dial returns a client of the service, as its administrator.
func dial(t *testing.T, options sandbox.Options) *sandbox.Client {
	t.Helper()
	if options.Key == "" {
		options.Key = conformance.AdminKey
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
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
	t.Cleanup(cancel)
	return ctx
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

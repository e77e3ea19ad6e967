package e2e_test

import (
	"context"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// dockerCLI does at the engine what the service never does, such as removing images and volumes.
func dockerCLI(t *testing.T, args ...string) string {
	t.Helper()
	if host := os.Getenv("DOCKER_HOST"); host != "" {
		args = append([]string{"--host", host}, args...)
	}
	out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "docker",
		args...).CombinedOutput()
	if err != nil {
		t.Errorf("docker %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// private asks for an image with a password.
func private(image, password string) lifecycle.CreateSandboxRequest {
	r := conformance.Request(image, "/forever")
	r.Image.Auth = &lifecycle.ImageAuth{Username: registryUser, Password: password}
	return r
}

// TestScratchImageInAPrivateRegistry runs a sandbox from an image that holds one static program and
// nothing else, and looks for the password everywhere.
func TestScratchImageInAPrivateRegistry(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{Program: true})
	password := "secret-" + uuid.NewString()
	images, open := startSlowRegistry(t, password)
	image := images.push(t, "private/scratch",
		conformance.Build(t, "sandbox.internal/test/e2e/testdata/forever"))
	noTrace := func(when string) {
		t.Helper()
		for _, line := range s.Log.With(password) {
			t.Errorf("%s the log has the password: %s", when, line)
		}
		checkNoFileWith(t, s.Directory, password)
		for _, container := range s.containers(t) {
			if strings.Contains(dockerCLI(t, "inspect", container.ID), password) {
				t.Errorf("%s container %s shows the password", when, container.Name)
			}
		}
		if s.Stop == nil {
			return
		}
		if got := s.Send(t, http.MethodGet, "/v1/sandboxes", ""); strings.Contains(got.Body,
			password) {
			t.Errorf("%s the list shows the password", when)
		}
	}

	// Refused before the engine is asked: the message repeats nothing of the credentials.
	for _, auth := range []string{
		`{"username": "robot", "password": ["` + password + `"]}`,
		`{"username": "robot", "password": "` + password + `", "token": "` + password + `"}`,
		`{"username": {"` + registryUser + `": "` + password + `"}}`,
		`"` + password + `"`,
	} {
		body := `{"image": {"uri": "` + image + `", "auth": ` + auth +
			`}, "timeout": 60, "resourceLimits": {}, "entrypoint": ["/forever"]}`
		got := s.Send(t, http.MethodPost, "/v1/sandboxes", body)
		if got.Status != http.StatusBadRequest || strings.Contains(got.Body, password) {
			t.Errorf("auth %s: %s", auth, got)
		}
	}

	// One with the password pulls; the others are refused, and do not get the image by its pull.
	first := s.Create(t, private(image, password))
	wait.Until(t, "the pull has begun",
		func() bool { blobs, _ := images.fetches(); return blobs > 0 })
	refused := s.Await(t, s.Create(t, conformance.Request(image, "/forever")), "Failed").Status
	if refused.Reason != "IMAGE_PULL_ERROR" {
		t.Errorf("without a password the reason is %s", refused.Reason)
	}
	conformance.Contains(t, refused.Message, "no basic auth credentials")
	refused = s.Await(t, s.Create(t, private(image, "wrong-"+password)), "Failed").Status
	if refused.Reason != "IMAGE_PULL_ERROR" || strings.Contains(refused.Message, password) {
		t.Errorf("with a wrong password: %s: %s", refused.Reason, refused.Message)
	}
	conformance.Contains(t, refused.Message, "unauthorized")
	noTrace("during the pull")

	open()
	s.Await(t, first, "Running")
	noTrace("after the pull")
	got := s.Send(t, http.MethodGet, "/v1/sandboxes/"+first, "")
	if strings.Contains(got.Body, "auth") {
		t.Errorf("GET shows the credentials: %s", got.Body)
	}
	s.Enter(t, first).Want(t, "for word in commands without a shell; do echo $word; done",
		"commands\nwithout\na\nshell\n")

	// An image that the engine has is used as it is, for every client.
	s.Running(t, conformance.Request(image, "/forever"))
	// One without a program that waits has the idle entrypoint of every sandbox.
	s.Running(t, conformance.Request(image, "/opt/sandbox/execd-init", "idle"))

	s.Delete(t, first)
	if got := s.Await(t, first, "Terminated").Status; got.Reason != "USER_DELETE" {
		t.Errorf("the reason is %s", got.Reason)
	}
	s.Kill()
	noTrace("after a kill")
	s.Boot(t)
	noTrace("after a new start")
}

func checkNoFileWith(t *testing.T, directory, secret string) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		files++
		content, err := os.ReadFile(path)
		if strings.Contains(string(content), secret) {
			t.Errorf("%s holds the password", path)
		}
		return err
	})
	if err != nil || files == 0 {
		t.Errorf("looked at %d files of %s: %v", files, directory, err)
	}
}

// TestImagePullError has the registry's own words in the message.
func TestImagePullError(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	public := startRegistry(t, "", nil)
	image := public.push(t, "public/scratch",
		conformance.Build(t, "sandbox.internal/test/e2e/testdata/forever"))
	for name, c := range map[string]struct {
		image string
		says  string
	}{
		"unknown tag": {strings.TrimSuffix(image, ":latest") + ":no-such-tag",
			"manifest unknown"},
		"unknown digest": {strings.TrimSuffix(image,
			":latest") + "@sha256:" + strings.Repeat("0", 64), "manifest unknown"},
		"unknown repository": {public.host + "/no/such:image", "unknown"},
		"unknown host":       {"no-such-host.invalid/image:1", "no such host"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := s.Create(t, conformance.Request(c.image, "/forever"))
			status := s.Await(t, id, "Failed").Status
			if status.Reason != "IMAGE_PULL_ERROR" {
				t.Errorf("the reason is %s", status.Reason)
			}
			conformance.Contains(t, status.Message, c.image, c.says)
		})
	}
	s.Running(t, conformance.Request(image, "/forever"))
}

// TestPullProgress reads a sandbox while its image arrives slowly.
func TestPullProgress(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	images, open := startSlowRegistry(t, "")
	image := images.push(t, "slow/scratch", conformance.Build(t, "sandbox.internal/test/e2e/testdata/forever"))
	id := s.Create(t, conformance.Request(image, "/forever"))

	amount := regexp.MustCompile(
		`^pulling .*slow/scratch:latest: 0 of 1 layers, [1-9][0-9.]*[kM]B of [1-9][0-9.]*MB$`)
	messages := map[string]bool{}
	defer func() {
		if t.Failed() {
			t.Logf("the messages were %q, and at the end %+v", slices.Sorted(maps.Keys(messages)),
				s.Get(t, id).Status)
		}
	}()
	wait.Until(t, "the message says how much has arrived, and more later", func() bool {
		status := s.Get(t, id).Status
		if status.State == "Pending" && status.Reason == "IMAGE_PULLING" &&
			amount.MatchString(status.Message) {
			messages[status.Message] = true
		}
		return len(messages) > 1
	})
	got := s.Send(t, http.MethodGet, "/v1/sandboxes/"+id+"/endpoints/80", "")
	conformance.WantProblem(t, got, 409, "CONFLICT", "Pending", "does not answer yet")
	if after := got.Header.Get("Retry-After"); after != "1" {
		t.Errorf("Retry-After is %q", after)
	}
	open()
	s.Await(t, id, "Running")
}

// TestPullOnce creates ten sandboxes of one missing image and deletes some of them, the first among
// them, while it comes.
func TestPullOnce(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	images, open := startSlowRegistry(t, "")
	r := conformance.Request(images.push(t, "once/scratch",
		conformance.Build(t, "sandbox.internal/test/e2e/testdata/forever")), "/forever")
	first := s.Create(t, r)
	wait.Until(t, "the pull has begun",
		func() bool { blobs, _ := images.fetches(); return blobs > 0 })
	var others []string
	for range 9 {
		others = append(others, s.Create(t, r))
	}
	for _, id := range others {
		wait.Until(t, id+" waits for the image",
			func() bool { return s.Get(t, id).Status.Reason == "IMAGE_PULLING" })
	}
	for _, id := range []string{first, others[0], others[8]} {
		s.Delete(t, id)
		if got := s.Await(t, id, "Terminated").Status; got.Reason != "USER_DELETE" {
			t.Errorf("the reason is %s", got.Reason)
		}
	}
	open()
	for _, id := range others[1:8] {
		s.Await(t, id, "Running")
	}
	if blobs, repeated := images.fetches(); blobs != 2 || repeated != 0 {
		// its configuration and its layer
		t.Errorf("%d blobs were fetched, %d of them more than once; want 2 and 0", blobs, repeated)
	}
	if left := images.leavers(); left != 0 {
		t.Errorf("%d requests for a blob were given up", left)
	}
}

// TestPullAbandoned deletes every sandbox that waits for an image; the pull ends, and a later
// create begins a new one.
func TestPullAbandoned(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	images, open := startSlowRegistry(t, "")
	r := conformance.Request(images.push(t, "abandoned/scratch",
		conformance.Build(t, "sandbox.internal/test/e2e/testdata/forever")), "/forever")
	waiting := []string{s.Create(t, r), s.Create(t, r)}
	wait.Until(t, "the layer comes",
		func() bool { blobs, _ := images.fetches(); return blobs > 0 })
	for _, id := range waiting {
		s.Delete(t, id)
		s.Await(t, id, "Terminated")
	}
	wait.Until(t, "the engine has given up the pull",
		func() bool { return images.leavers() > 0 })
	later := s.Create(t, r)
	open()
	s.Await(t, later, "Running")
}

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

	"sandbox.internal/gen/lifecycle"
)

// dockerCLI does at the engine what the service never does, such as removing images and volumes.
func dockerCLI(t *testing.T, args ...string) string {
	t.Helper()
	if host := os.Getenv("DOCKER_HOST"); host != "" {
		args = append([]string{"--host", host}, args...)
	}
	out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "docker", args...).CombinedOutput()
	if err != nil {
		t.Errorf("docker %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// private asks for an image with a password.
func private(image, password string) lifecycle.CreateSandboxRequest {
	r := request(image, "/forever")
	r.Image.Auth = &lifecycle.ImageAuth{Username: registryUser, Password: password}
	return r
}

// TestScratchImageInAPrivateRegistry runs a sandbox from an image that holds one static program and nothing else, and looks for the
// password everywhere.
func TestScratchImageInAPrivateRegistry(t *testing.T) {
	t.Parallel()
	s := start(t, plan{program: true})
	password := "secret-" + uuid.NewString()
	images, open := startSlowRegistry(t, password)
	image := images.push(t, "private/scratch", programs.build(t, "./testdata/forever"))
	noTrace := func(when string) {
		t.Helper()
		for _, line := range s.log.with(password) {
			t.Errorf("%s the log has the password: %s", when, line)
		}
		checkNoFileWith(t, s.folder, password)
		for _, container := range s.containers(t) {
			if strings.Contains(dockerCLI(t, "inspect", container.ID), password) {
				t.Errorf("%s container %s shows the password", when, container.Name)
			}
		}
		if s.stop == nil {
			return
		}
		if got := s.send(t, http.MethodGet, "/v1/sandboxes", ""); strings.Contains(got.body, password) {
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
		body := `{"image": {"uri": "` + image + `", "auth": ` + auth + `}, "timeout": 60, "resourceLimits": {}, "entrypoint": ["/forever"]}`
		got := s.send(t, http.MethodPost, "/v1/sandboxes", body)
		if got.status != http.StatusBadRequest || strings.Contains(got.body, password) {
			t.Errorf("auth %s: %s", auth, got)
		}
	}

	// One with the password pulls; the others are refused, and do not get the image by its pull.
	first := s.create(t, private(image, password))
	eventually(t, "the pull has begun", func() bool { blobs, _ := images.fetches(); return blobs > 0 })
	refused := s.await(t, s.create(t, request(image, "/forever")), "Failed").Status
	if refused.Reason != "IMAGE_PULL_ERROR" {
		t.Errorf("without a password the reason is %s", refused.Reason)
	}
	contains(t, refused.Message, "no basic auth credentials")
	refused = s.await(t, s.create(t, private(image, "wrong-"+password)), "Failed").Status
	if refused.Reason != "IMAGE_PULL_ERROR" || strings.Contains(refused.Message, password) {
		t.Errorf("with a wrong password: %s: %s", refused.Reason, refused.Message)
	}
	contains(t, refused.Message, "unauthorized")
	noTrace("during the pull")

	open()
	s.await(t, first, "Running")
	noTrace("after the pull")
	got := s.send(t, http.MethodGet, "/v1/sandboxes/"+first, "")
	if strings.Contains(got.body, "auth") {
		t.Errorf("GET shows the credentials: %s", got.body)
	}
	s.enter(t, first).want(t, "for word in commands without a shell; do echo $word; done", "commands\nwithout\na\nshell\n")

	// An image that the engine has is used as it is, whoever asks.
	s.running(t, request(image, "/forever"))

	s.delete(t, first)
	if got := s.await(t, first, "Terminated").Status; got.Reason != "USER_DELETE" {
		t.Errorf("the reason is %s", got.Reason)
	}
	s.kill()
	noTrace("after a kill")
	s.boot(t)
	noTrace("after a new start")
}

func checkNoFileWith(t *testing.T, folder, secret string) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
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
		t.Errorf("looked at %d files of %s: %v", files, folder, err)
	}
}

// TestImagePullError has the registry's own words in the message.
func TestImagePullError(t *testing.T) {
	t.Parallel()
	s := start(t, plan{})
	public := startRegistry(t, "", nil)
	image := public.push(t, "public/scratch", programs.build(t, "./testdata/forever"))
	for name, c := range map[string]struct {
		image string
		says  string
	}{
		"unknown tag":        {strings.TrimSuffix(image, ":latest") + ":no-such-tag", "manifest unknown"},
		"unknown digest":     {strings.TrimSuffix(image, ":latest") + "@sha256:" + strings.Repeat("0", 64), "manifest unknown"},
		"unknown repository": {public.host + "/no/such:image", "unknown"},
		"unknown host":       {"no-such-host.invalid/image:1", "no such host"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := s.create(t, request(c.image, "/forever"))
			status := s.await(t, id, "Failed").Status
			if status.Reason != "IMAGE_PULL_ERROR" {
				t.Errorf("the reason is %s", status.Reason)
			}
			contains(t, status.Message, c.image, c.says)
		})
	}
	s.running(t, request(image, "/forever"))
}

// TestPullProgress looks at a sandbox while its image comes slowly.
func TestPullProgress(t *testing.T) {
	t.Parallel()
	s := start(t, plan{})
	images, open := startSlowRegistry(t, "")
	image := images.push(t, "slow/scratch", programs.build(t, "./testdata/forever"))
	id := s.create(t, request(image, "/forever"))

	amount := regexp.MustCompile(`^pulling .*slow/scratch:latest: 0 of 1 layers, [1-9][0-9.]*[kM]B of [1-9][0-9.]*MB$`)
	told := map[string]bool{}
	defer func() {
		if t.Failed() {
			t.Logf("told was %q, and at the end %+v", slices.Sorted(maps.Keys(told)), s.get(t, id).Status)
		}
	}()
	eventually(t, "the message tells how much has come, and more later", func() bool {
		status := s.get(t, id).Status
		if status.State == "Pending" && status.Reason == "IMAGE_PULLING" && amount.MatchString(status.Message) {
			told[status.Message] = true
		}
		return len(told) > 1
	})
	got := s.send(t, http.MethodGet, "/v1/sandboxes/"+id+"/endpoints/80", "")
	wantProblem(t, got, 409, "CONFLICT", "Pending", "does not answer yet")
	if after := got.header.Get("Retry-After"); after != "1" {
		t.Errorf("Retry-After is %q", after)
	}
	open()
	s.await(t, id, "Running")
}

// TestPullOnce creates ten sandboxes of one missing image and deletes some of them, the first among them, while it comes.
func TestPullOnce(t *testing.T) {
	t.Parallel()
	s := start(t, plan{})
	images, open := startSlowRegistry(t, "")
	r := request(images.push(t, "once/scratch", programs.build(t, "./testdata/forever")), "/forever")
	first := s.create(t, r)
	eventually(t, "the pull has begun", func() bool { blobs, _ := images.fetches(); return blobs > 0 })
	var others []string
	for range 9 {
		others = append(others, s.create(t, r))
	}
	for _, id := range others {
		eventually(t, id+" waits for the image", func() bool { return s.get(t, id).Status.Reason == "IMAGE_PULLING" })
	}
	for _, id := range []string{first, others[0], others[8]} {
		s.delete(t, id)
		if got := s.await(t, id, "Terminated").Status; got.Reason != "USER_DELETE" {
			t.Errorf("the reason is %s", got.Reason)
		}
	}
	open()
	for _, id := range others[1:8] {
		s.await(t, id, "Running")
	}
	if blobs, repeated := images.fetches(); blobs != 2 || repeated != 0 { // its configuration and its layer
		t.Errorf("%d blobs were fetched, %d of them more than once; want 2 and 0", blobs, repeated)
	}
	if left := images.leavers(); left != 0 {
		t.Errorf("%d requests for a blob were given up", left)
	}
}

// TestPullAbandoned deletes everybody who waits for an image; the pull ends, and a later create begins a new one.
func TestPullAbandoned(t *testing.T) {
	t.Parallel()
	s := start(t, plan{})
	images, open := startSlowRegistry(t, "")
	r := request(images.push(t, "abandoned/scratch", programs.build(t, "./testdata/forever")), "/forever")
	waiting := []string{s.create(t, r), s.create(t, r)}
	eventually(t, "the layer comes", func() bool { blobs, _ := images.fetches(); return blobs > 0 })
	for _, id := range waiting {
		s.delete(t, id)
		s.await(t, id, "Terminated")
	}
	eventually(t, "the engine has given up the pull", func() bool { return images.leavers() > 0 })
	later := s.create(t, r)
	open()
	s.await(t, later, "Running")
}

package e2e_test

import (
	"context"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
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

// TestScratchImageInAPrivateRegistry runs a sandbox from an image that holds one static program and nothing else.
func TestScratchImageInAPrivateRegistry(t *testing.T) {
	t.Parallel()
	s := start(t, plan{})
	password := "secret-" + uuid.NewString()
	images := startRegistry(t, password, nil)
	r := request(images.push(t, "private/scratch", programs.build(t, "./testdata/forever")), "/forever")

	// Without the password, and with a wrong one, before the engine has the image.
	refused := s.await(t, s.create(t, r), "Failed").Status
	if refused.Reason != "IMAGE_PULL_ERROR" {
		t.Errorf("without a password the reason is %s", refused.Reason)
	}
	contains(t, refused.Message, "no basic auth credentials")
	r.Image.Auth = &lifecycle.ImageAuth{Username: registryUser, Password: "wrong-" + password}
	if got := s.await(t, s.create(t, r), "Failed").Status; got.Reason != "IMAGE_PULL_ERROR" {
		t.Errorf("with a wrong password the reason is %s", got.Reason)
	}

	r.Image.Auth.Password = password
	id := s.running(t, r)
	got := s.send(t, http.MethodGet, "/v1/sandboxes/"+id, "")
	if strings.Contains(got.body, "auth") || strings.Contains(got.body, password) {
		t.Errorf("GET shows the credentials: %s", got.body)
	}
	s.enter(t, id).want(t, "for word in commands without a shell; do echo $word; done", "commands\nwithout\na\nshell\n")
	s.delete(t, id)
	if got := s.await(t, id, "Terminated").Status; got.Reason != "USER_DELETE" {
		t.Errorf("the reason is %s", got.Reason)
	}

	if lines := s.log.with(password); len(lines) > 0 {
		t.Errorf("the log has the password: %q", lines)
	}
	files := 0
	err := filepath.WalkDir(s.folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		files++
		content, err := os.ReadFile(path)
		if strings.Contains(string(content), password) {
			t.Errorf("%s holds the password", path)
		}
		return err
	})
	if err != nil || files == 0 {
		t.Errorf("looked at %d files of %s: %v", files, s.folder, err)
	}
}

// TestSlowPull asks for the endpoint while the image does not arrive, and deletes the sandbox then.
func TestSlowPull(t *testing.T) {
	t.Parallel()
	s := start(t, plan{})
	gate := make(chan struct{})
	images := startRegistry(t, "", gate)
	t.Cleanup(func() { close(gate) })
	id := s.create(t, request(images.push(t, "slow/scratch", programs.build(t, "./testdata/forever")), "/forever"))
	eventually(t, "the pull has begun", func() bool { return s.get(t, id).Status.Reason == "IMAGE_PULLING" })

	got := s.send(t, http.MethodGet, "/v1/sandboxes/"+id+"/endpoints/80", "")
	wantProblem(t, got, 409, "CONFLICT", "Pending", "does not answer yet")
	if after := got.header.Get("Retry-After"); after != "1" {
		t.Errorf("Retry-After is %q", after)
	}
	s.delete(t, id)
	if got := s.await(t, id, "Terminated").Status; got.Reason != "USER_DELETE" {
		t.Errorf("the reason is %s", got.Reason)
	}
}

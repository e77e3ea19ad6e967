package local_test

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/test/e2e/conformance"
)

// TestSnapshotsHaveNoSecrets: no file of the engine's store has a secret that a sandbox was given,
// after snapshots of it, a rollback, a fork and an image of a snapshot; what its programs have
// written to files is there.
func TestSnapshotsHaveNoSecrets(t *testing.T) {
	t.Parallel()
	const user, password = "robot-of-the-registry", "word-for-the-registry"
	image, _ := startPrivateRegistry(t, user, password)
	host, _, _ := strings.Cut(image, "/")
	m := newMachines()
	m.Local = fmt.Sprintf("insecure_registries = [%q]", host)
	backend := onLocal(m)
	s := conformance.Start(t, backend, conformance.Plan{Program: true})
	r := s.Idle()
	r.Image = lifecycle.Image{URI: image, Auth: &lifecycle.ImageAuth{Username: user, Password: password}}
	r.Env = lifecycle.Env{"GIVEN": "value-of-the-environment"}
	r.Volumes = []lifecycle.Volume{{Name: "data", MountPath: "/data", Pvc: &lifecycle.ClaimSource{ClaimName: backend.Claim(t, s)}}}
	id := s.Running(t, r)
	box := s.Enter(t, id)
	// Each word is joined by the shell: the command's text may be in a file.
	box.Want(t, `p=part; echo volume-$p-secret >/data/file; echo memory-$p-secret >/dev/shm/file; echo written-$p-known >/root/file; echo config-$p-known >/etc/known`, "")
	token := s.Endpoint(t, id, conformance.DaemonPort).Headers["X-EXECD-ACCESS-TOKEN"]
	secrets := []string{user, password, "value-of-the-environment", token, "volume-part-secret", "memory-part-secret"}

	path := "/v1/sandboxes/" + id
	taken, err := conformance.Decode[lifecycle.Snapshot](s.Send(t, http.MethodPost, path+"/snapshots", `{"name":"kept"}`, "Prefer", "wait=60"))
	if err != nil || taken.Status.State != "Ready" {
		t.Fatalf("the snapshot is %+v, %v", taken, err)
	}
	for _, request := range []struct{ path, body string }{
		{path + "/rollback", fmt.Sprintf(`{"snapshotId":%q}`, taken.ID)}, {path + "/fork", `{"env":{"OF_THE_FORK":"value-of-the-fork"}}`},
		{"/v1/snapshots/" + taken.ID + "/export", `{"name":"sandbox/exported:1"}`}, {path + "/snapshots", `{}`},
	} {
		if got := s.Send(t, http.MethodPost, request.path, request.body, "Prefer", "wait=60"); got.Status >= 300 {
			t.Fatalf("%s: %s", request.path, got)
		}
	}
	archive := s.Send(t, http.MethodGet, "/v1/snapshots/"+taken.ID+"/diff", "", "Accept", "application/x-tar").Body
	directory := filepath.Join(m.of(s.Instance).Directory, "images")
	secrets = append(secrets, "value-of-the-fork")
	allKnown := []string{"written-part-known", "config-part-known"}
	files := filesWith(t, directory, append(allKnown, secrets...))
	for _, secret := range secrets {
		if len(secret) < 10 {
			t.Fatalf("the secret %q is too short to be looked for", secret)
		}
		if found := files[secret]; len(found) > 0 || strings.Contains(archive, secret) {
			t.Errorf("%q is in the files %q, in the archive: %t", secret, found, strings.Contains(archive, secret))
		}
	}
	for _, known := range allKnown {
		found := files[known]
		inSnapshot, inLayer := false, false
		for _, name := range found {
			inSnapshot = inSnapshot || strings.HasPrefix(name, "snapshots/")
			inLayer = inLayer || strings.HasPrefix(name, "layers/")
		}
		if !inSnapshot || !inLayer || !strings.Contains(archive, known) {
			t.Errorf("the text %q that the sandbox wrote is in the files %q", known, found)
		}
	}
}

// filesWith returns, for each text, the files below a directory that have it in their content,
// their name, the target of a symbolic link. What is removed meanwhile is left out.
func filesWith(t *testing.T, directory string, texts []string) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	err := filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil
		}
		if err != nil {
			return err
		}
		name, err := filepath.Rel(directory, path)
		if err != nil {
			return err
		}
		has := map[string]bool{}
		for _, text := range texts {
			has[text] = strings.Contains(entry.Name(), text)
		}
		switch {
		case entry.Type().IsRegular():
			markTexts(t, path, has)
		case entry.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			for text := range has {
				has[text] = has[text] || err == nil && strings.Contains(target, text)
			}
		}
		for _, text := range texts {
			if has[text] {
				found[text] = append(found[text], name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// markTexts marks the texts that a file has in its content. It reads the file in pieces that
// overlap by the length of the longest one.
func markTexts(t *testing.T, path string, has map[string]bool) {
	t.Helper()
	file, err := os.Open(path)
	if os.IsNotExist(err) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	overlap := 0
	for text := range has {
		overlap = max(overlap, len(text))
	}
	buffer := make([]byte, 1<<20)
	for kept := 0; ; {
		n, err := io.ReadFull(file, buffer[kept:])
		for text := range has {
			has[text] = has[text] || bytes.Contains(buffer[:kept+n], []byte(text))
		}
		if err != nil {
			if err != io.EOF && err != io.ErrUnexpectedEOF {
				t.Fatal(err)
			}
			return
		}
		kept = copy(buffer, buffer[len(buffer)-overlap:])
	}
}

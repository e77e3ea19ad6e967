package e2e_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/server/config"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/random"
	"sandbox.internal/test/wait"
)

func goVersion() string { return runtime.Version() }

func content(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// audited is a line of the audit log.
type audited struct {
	Seq       uint64 `json:"seq"`
	Kind      string `json:"kind"`
	Operation string `json:"operation"`
	KeyName   string `json:"key_name"`
	Role      string `json:"role"`
	Remote    string `json:"remote"`
	RequestID string `json:"request_id"`
	SandboxID string `json:"sandbox_id"`
	Intent    uint64 `json:"intent"`
	Status    int    `json:"status"`
	Code      string `json:"code"`
}

func auditLines(t *testing.T, path string) []audited {
	t.Helper()
	var lines []audited
	for text := range strings.Lines(content(t, path)) {
		var line audited
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		lines = append(lines, line)
	}
	return lines
}

// outcomes returns "operation key sandbox status code" of every outcome and refusal.
func outcomes(lines []audited) []string {
	var found []string
	for _, line := range lines {
		if line.Kind == "outcome" || line.Kind == "refused" {
			found = append(found,
				strings.Join([]string{line.Kind, line.Operation, line.KeyName, line.SandboxID,
					http.StatusText(line.Status), line.Code}, " "))
		}
	}
	return found
}

// verifyProgram runs `sandbox-server audit verify`, which must find nothing wrong.
func verifyProgram(t *testing.T, files ...string) string {
	t.Helper()
	args := []string{"audit", "verify"}
	for _, file := range files {
		args = append(args, "--file", file)
	}
	out, err := exec.CommandContext(t.Context(),
		conformance.Build(t, "sandbox.internal/server/cmd/sandbox-server"), args...).CombinedOutput()
	if err != nil {
		t.Errorf("audit verify: %v\n%s", err, out)
	}
	return string(out)
}

// TestAuditLogOfALife looks who did what, over a rotation by SIGHUP.
func TestAuditLogOfALife(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit", "audit.log")
	s := start(t, conformance.Plan{Program: true, Server: "audit_log = \"" + path + "\"",
		Keys: []config.Key{
			{Name: "ada", SHA256: conformance.Digest("the-key-of-ada"), Role: config.RoleUser},
			{Name: "eve", SHA256: conformance.Digest("the-key-of-eve"), Role: config.RoleViewer},
		}})
	ada, eve := s.As(t, "the-key-of-ada"), s.As(t, "the-key-of-eve")
	id := ada.Running(t, idle())
	ada.Endpoint(t, id, 80)
	ada.Pause(t, id)
	eve.Act(t, http.MethodDelete, id, http.StatusForbidden)
	eve.Act(t, http.MethodGet, id, http.StatusOK)
	s.Send(t, http.MethodPost, "/v1/sandboxes", `{}`)
	s.As(t, "unknown key").Act(t, http.MethodDelete, id, http.StatusUnauthorized)

	old := path + ".1"
	if err := os.Rename(path, old); err != nil {
		t.Fatal(err)
	}
	if err := s.HUP(); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "there is a new audit log", func() bool {
		info, err := os.Stat(path)
		return err == nil && info.Size() > 0
	})
	s.Delete(t, id)
	s.Await(t, id, "Terminated")
	s.Halt(t)

	lines := append(auditLines(t, old), auditLines(t, path)...)
	want := []string{
		"outcome createSandbox ada " + id + " Accepted ",
		"outcome getEndpoint ada " + id + " OK ",
		"outcome pauseSandbox ada " + id + " Accepted ",
		"outcome deleteSandbox eve " + id + " Forbidden FORBIDDEN",
		"refused createSandbox server.api_key  Bad Request INVALID_REQUEST_BODY",
		"outcome deleteSandbox server.api_key " + id + " No Content ",
	}
	if got := outcomes(lines); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("outcomes\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	intents := map[uint64]audited{}
	for _, line := range lines {
		if line.Kind == "intent" {
			intents[line.Seq] = line
		}
		if line.Kind == "outcome" &&
			(intents[line.Intent].RequestID != line.RequestID || line.RequestID == "" ||
				line.Remote != "127.0.0.1" || line.Role == "") {
			t.Errorf("outcome %+v of intention %+v", line, intents[line.Intent])
		}
	}
	conformance.Contains(t, verifyProgram(t, old, path), old+": OK", path+": OK")
}

// TestAuditAfterKill kills the service while it is asked to create and delete. What was done must
// be in the log, though its outcome may not be.
func TestAuditAfterKill(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	s := start(t, conformance.Plan{Program: true, Server: "audit_log = \"" + path + "\""})
	moments := random.New(t)
	for range 3 {
		var requests sync.WaitGroup
		for range 5 {
			requests.Go(func() {
				_,
					_ = s.Try(http.MethodPost, "/v1/sandboxes", conformance.Encode(t, idle()))
			})
		}
		for _, sandbox := range s.Everything(t) {
			requests.Go(func() { _, _ = s.Try(http.MethodDelete, "/v1/sandboxes/"+sandbox.ID, "") })
		}
		after := time.Duration(moments.Int64N(int64(40 * time.Millisecond)))
		time.Sleep(after) // the moment of the kill, not a wait for something
		s.Kill()
		requests.Wait()
		s.Boot(t)
	}
	lines := auditLines(t, path)
	created, deleted := 0, map[string]bool{}
	for _, line := range lines {
		switch {
		case line.Kind == "intent" && line.Operation == "createSandbox":
			created++
		case line.Kind == "intent" && line.Operation == "deleteSandbox":
			deleted[line.SandboxID] = true
		}
	}
	sandboxes := s.Everything(t)
	if created < len(sandboxes) {
		t.Errorf("%d sandboxes were created, the log has %d", len(sandboxes), created)
	}
	for _, sandbox := range sandboxes {
		if sandbox.Status.Reason == "USER_DELETE" && !deleted[sandbox.ID] {
			t.Errorf("%s was deleted, and the log has no line of it", sandbox.ID)
		}
	}
	t.Logf("%d sandboxes, %d intentions to create, %d to delete; %s", len(sandboxes), created,
		len(deleted), verifyProgram(t, path))
	s.DeleteAll(t)
	for _, sandbox := range s.Everything(t) {
		if !conformance.Final(s.Get(t, sandbox.ID).Status.State) {
			s.Await(t, sandbox.ID, "Terminated")
		}
	}
}

// TestAuditOnAFullDisk: what cannot be recorded is not done; reads go on; once there is space, so
// does everything else.
func TestAuditOnAFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatalf("this test mounts a small file system, which takes root: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	s := start(t, conformance.Plan{Server: "audit_log = \"" + dir + "/audit.log\""})
	id := s.Running(t, idle())
	ballast := filepath.Join(dir, "ballast")
	file, err := os.Create(ballast)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = file.Write(bytes.Repeat([]byte("x"), 4096))
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	// What is left of the last page of the log takes a few lines.
	var got conformance.Answer
	wait.Until(t, "the disk is full", func() bool {
		got = s.Send(t, http.MethodPost, "/v1/sandboxes/"+id+"/resume", "")
		return got.Status == http.StatusInternalServerError
	})
	conformance.WantProblem(t, got, 500, "INTERNAL_ERROR")
	before := len(s.Everything(t))
	conformance.WantProblem(t, s.Send(t, http.MethodPost, "/v1/sandboxes", conformance.Encode(t, idle())), 500,
		"INTERNAL_ERROR")
	conformance.WantProblem(t, s.Send(t, http.MethodDelete, "/v1/sandboxes/"+id, ""), 500,
		"INTERNAL_ERROR")
	if state := s.Get(t, id).Status.State; state != "Running" {
		t.Errorf("the sandbox is %s", state)
	}
	if after := len(s.Everything(t)); after != before {
		t.Errorf("%d sandboxes, %d before", after, before)
	}
	if len(s.Log.With("no space left on device", `"level":"error"`)) == 0 {
		t.Error("the log does not have the cause")
	}
	if got := s.scrape(t)["sandbox_audit_write_errors_total"]; got < 3 {
		t.Errorf("sandbox_audit_write_errors_total is %v", got)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	s.Delete(t, id)
	s.Await(t, id, "Terminated")
	s.Halt(t)
	verifyProgram(t, dir+"/audit.log")
}

// TestDebugListener: profiles on a listener of their own, never on the service's.
func TestDebugListener(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{Program: true, Server: `debug_address = "127.0.0.1:0"`})
	lines := s.Log.With(`"debug":"127.0.0.1:`)
	if len(lines) != 1 {
		t.Fatalf("lines with the address: %q", lines)
	}
	var line struct{ Debug string }
	if err := json.Unmarshal([]byte(lines[0]), &line); err != nil {
		t.Fatal(err)
	}
	for _, profile := range []string{"", "goroutine?debug=1", "heap", "cmdline"} {
		if got := conformance.Fetch(t,
			"http://"+line.Debug+"/debug/pprof/"+profile); got.Status != http.StatusOK {
			t.Errorf("%q: %d", profile, got.Status)
		}
	}
	if got := conformance.Fetch(t, s.URL+"/debug/pprof/", conformance.KeyHeader,
		conformance.AdminKey); got.Status != http.StatusNotFound {
		t.Errorf("on the main listener: %d", got.Status)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		"http://"+line.Debug+"/debug/pprof/heap", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Host = "page.example.com"
	response, err := wait.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusForbidden {
		t.Errorf("for another host: %d", response.StatusCode)
	}
}

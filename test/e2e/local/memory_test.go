package local_test

import (
	"fmt"
	"strings"
	"testing"

	sandbox "sandbox.internal/clients/go"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/e2e/conformance/localengine"
	"sandbox.internal/test/wait"
)

// counter counts the connections to it, in its memory and in a file whose name it has removed.
const counter = `
import os, socket
removed = open("/root/removed", "w+")
os.remove("/root/removed")
count = 0
server = socket.create_server(("127.0.0.1", 9000))
print("ready", flush=True)
while True:
    connection, _ = server.accept()
    count += 1
    removed.write("x")
    removed.flush()
    connection.sendall(b"%d %d" % (count, os.fstat(removed.fileno()).st_size))
    connection.close()
`

// asking prints what the counter answers.
const asking = `python3 -c 'import socket; print(socket.create_connection(("127.0.0.1", 9000)).recv(99).decode())'`

// TestGVisor: processes, files without a name and a Jupyter kernel are as they were when a
// snapshot of memory was taken, after each rollback to it, also by a service that was killed
// before.
func TestGVisor(t *testing.T) {
	if !localengine.OwnKernel(*usual) {
		t.Fatal("processes are kept by gVisor alone: -runtime runsc, and what scripts/gvisor.sh --build prints in PATH")
	}
	t.Parallel()
	on := newMachines()
	on.Python = true
	s := conformance.Start(t, onLocal(on), conformance.Plan{Program: true})
	dial := func() *sandbox.Client {
		client, err := sandbox.New(&sandbox.Options{URL: s.URL, Key: conformance.AdminKey})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		return client
	}
	client := dial()
	box, err := client.Create(t.Context(), &sandbox.CreateOptions{Image: localengine.PythonImage, Memory: "1Gi", Env: map[string]string{"GREETING": "hello"}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = box.Commands.Start(t.Context(), "python3 -c '"+strings.ReplaceAll(counter, "'", `'"'"'`)+"'", nil)
	if err != nil {
		t.Fatal(err)
	}
	run := func(when, line, want string) {
		t.Helper()
		got, err := box.Commands.Run(t.Context(), line, nil)
		if err != nil || strings.TrimSpace(got.Stdout) != want {
			t.Errorf("%s: %q says %q, want %q (%v, %s)", when, line, got.Stdout, want, err, got.Stderr)
		}
	}
	cell := func(when, code, want string) {
		t.Helper()
		got, err := box.Code.Run(t.Context(), code, nil)
		if err != nil || got.Error != nil || strings.TrimSpace(got.Stdout) != want {
			t.Errorf("%s: the cell %q says %q, want %q (%v, %+v)", when, code, got.Stdout, want, err, got.Error)
		}
	}
	count := 0
	wait.Until(t, "the counter answers", func() bool {
		got, err := box.Commands.Run(t.Context(), asking, nil)
		_, noNumber := fmt.Sscan(got.Stdout, &count)
		return err == nil && noNumber == nil
	})
	next := fmt.Sprintf("%d %d", count+1, count+1)
	cell("at first", "x = 41", "")
	run("at first", "echo before >/root/state", "")
	kept, err := box.Snapshot(t.Context(), &sandbox.SnapshotOptions{Name: "before", Memory: true})
	if err != nil {
		t.Fatal(err)
	}
	if kept.Kind != sandbox.SnapshotMemory || kept.Size < 1<<20 || kept.FreezeMs <= 0 {
		t.Errorf("the snapshot is %+v", kept)
	}
	t.Logf("the snapshot has %d bytes, and the processes stood still for %.1f ms", kept.Size, kept.FreezeMs)
	run("after the snapshot", asking, next)
	cell("after the snapshot", "x = None", "")
	run("after the snapshot", "echo after >/root/state", "")
	for round := range 2 {
		when := fmt.Sprintf("after rollback %d", round+1)
		if round > 0 {
			s.Kill()
			s.Boot(t)
			client = dial() // at another port
			if box, err = client.Connect(t.Context(), box.ID()); err != nil {
				t.Fatal(err)
			}
		}
		if err := box.Rollback(t.Context(), kept.ID); err != nil {
			t.Fatal(err)
		}
		run(when, asking, next)
		cell(when, "print(x + 1)", "42")
		run(when, "cat /root/state; echo $GREETING", "before\nhello")
	}
	if _, err := client.Create(t.Context(), &sandbox.CreateOptions{SnapshotID: kept.ID}); err == nil || !strings.Contains(err.Error(), "belongs to its sandbox") {
		t.Errorf("a create with a snapshot of memory: %v", err)
	}
	if err := client.DeleteSnapshot(t.Context(), kept.ID); err != nil {
		t.Error(err)
	}
}

package kube_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// testLifecycle follows a sandbox from its creation over HTTP to its end, through the API and
// through kubectl.
func testLifecycle(t *testing.T) {
	s := conformance.Start(t, onKubernetes(), conformance.Plan{})
	r := conformance.Request(baseImage, "sh", "-c",
		"count=0; while :; do count=$((count + 1)); echo $count > /tmp/count; sleep 0.1; done")
	id := s.Running(t, r)
	inside := s.Enter(t, id)

	inside.Want(t, "echo hello", "hello\n")
	inside.Want(t, "python3 -c 'print(sum(range(10)))'", "45\n")
	inside.Upload(t, "/srv/program.py", "import socket\nprint(socket.gethostname())\n")
	inside.Want(t, "python3 /srv/program.py", id+"-0\n")
	t.Run("row lifecycle/cluster/BatchSandbox columns", func(t *testing.T) {
		table := kubectl(t, s.Instance, "", "get", "bsbx", "-o", "wide")
		t.Logf("while it runs:\n%s", table)
		wantColumns(t, table,
			map[string]string{"NAME": id, "DESIRED": "1", "TOTAL": "1", "ALLOCATED": "1",
				"READY": "1", "PHASE": "Running"})
	})

	t.Run("pause keeps memory", func(t *testing.T) {
		s.Pause(t, id)
		table := kubectl(t, s.Instance, "", "get", "bsbx", "-o", "wide")
		wantColumns(t, table, map[string]string{"NAME": id, "ALLOCATED": "1", "PHASE": "Paused"})
		count := func() string {
			return kubectl(t, s.Instance, "", "exec", id+"-0", "-c", "sandbox", "--", "cat",
				"/tmp/count")
		}
		before := count()
		// Between the two looks the loop would have counted on, many times.
		again := kubectl(t, s.Instance, "", "exec", id+"-0", "-c", "sandbox", "--", "sh", "-c",
			"sleep 2; cat /tmp/count")
		if before != again {
			t.Errorf("a paused sandbox counts from %q to %q", before, again)
		}
		s.Resume(t, id)
		wait.Until(t, "it counts on from where it was", func() bool {
			var paused, now int
			fmt.Sscan(before, &paused)
			fmt.Sscan(count(), &now)
			if now < paused && now > 0 {
				t.Fatalf("the count was %d and is %d: the process was restarted", paused, now)
			}
			return now > paused
		})
	})

	s.Delete(t, id)
	if got := s.Await(t, id, "Terminated").Status; got.Reason != "USER_DELETE" {
		t.Errorf("the reason of the end is %s", got.Reason)
	}
	wantHistory(t, batchOf(t, s, id), "Pending Running Pausing Paused Resuming Running Stopping Terminated")
	s.Gone(t, id)
}

// testRenewal renews a sandbox at once, whatever it is doing, and sees it end no earlier than that.
func testRenewal(t *testing.T) {
	s := conformance.Start(t, onKubernetes(), conformance.Plan{})
	r := s.Idle()
	r.Timeout = 60
	id := s.Create(t, r)
	later := s.Get(t, id).ExpiresAt.Add(time.Minute).Truncate(time.Second)
	renewed := s.Renew(t, id, later.UTC().Format(time.RFC3339))
	if renewed.Status != 200 || !s.Get(t, id).ExpiresAt.Equal(later) {
		t.Fatalf("renew: %s", renewed)
	}
	wantColumns(t, kubectl(t, s.Instance, "", "get", "bsbx"), map[string]string{"EXPIRE": later.UTC().Format(time.RFC3339)})
	s.Await(t, id, "Running")
	ended := s.AwaitWithin(t, id, "Terminated", time.Until(later)+wait.Patience())
	if ended.Status.Reason != "EXPIRED" {
		t.Errorf("the sandbox ended with %s (%s)", ended.Status.Reason, ended.Status.Message)
	}
	batch := batchOf(t, s, id)
	wantHistory(t, batch, "Pending Running Stopping Terminated")
	for _, change := range batch.Status.History {
		if change.Phase == v1alpha1.PhaseStopping && change.Time.Time.Before(later) {
			t.Errorf("the sandbox was stopped at %v, before its renewed expiry at %v", change.Time, later)
		}
	}
	s.Gone(t, id)
}

func batchOf(t *testing.T, s *conformance.Service, id string) v1alpha1.BatchSandbox {
	t.Helper()
	var batch v1alpha1.BatchSandbox
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: s.Instance, Name: id}, &batch); err != nil {
		t.Fatal(err)
	}
	return batch
}

func wantHistory(t *testing.T, batch v1alpha1.BatchSandbox, want string) {
	t.Helper()
	var phases []string
	for _, change := range batch.Status.History {
		phases = append(phases, string(change.Phase))
	}
	if strings.Join(phases, " ") != want {
		t.Errorf("the history of the batch is %v, want %s", phases, want)
	}
}

// available waits until a Pool has that many pods ready to be given.
func available(t *testing.T, namespace, name string, count int32) {
	t.Helper()
	eventually(t, fmt.Sprintf("Pool %s has %d pods", name, count), func(ctx context.Context) error {
		var pool v1alpha1.Pool
		if err := admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name},
			&pool); err != nil {
			return err
		}
		if pool.Status.Available < count {
			return fmt.Errorf("status is %+v", pool.Status)
		}
		return nil
	})
}

// wantColumns checks fields of the only line of a table that kubectl has printed.
func wantColumns(t *testing.T, table string, want map[string]string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(table), "\n")
	if len(lines) != 2 {
		t.Errorf("kubectl prints %q, want a table with one line", table)
		return
	}
	for name, value := range want {
		// A column is as wide as its title says; a field may be empty.
		begin := strings.Index(" "+lines[0]+" ", " "+name+" ")
		if begin < 0 {
			t.Errorf("there is no column %s in\n%s", name, table)
			continue
		}
		got, _, _ := strings.Cut(lines[1][min(begin, len(lines[1])):], " ")
		if got != value {
			t.Errorf("%s is %q, want %q, in\n%s", name, got, value, table)
		}
	}
}

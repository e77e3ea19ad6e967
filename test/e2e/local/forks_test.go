package local_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/random"
)

// identity prints what a program may take for the identity of its machine, or for random, a line
// each, and at last what is the machine's.
const identity = `hostname; hostname -i; cat /etc/machine-id; od -An -N16 -tx1 /dev/urandom
python3 -ISc 'import random, secrets, uuid
print(random.getrandbits(128), uuid.uuid1(), uuid.uuid4(), secrets.token_hex(16), sep="\n")'
cat /proc/sys/kernel/random/boot_id`

// identityNames are what the lines are.
var identityNames = []string{
	"host name", "address", "machine-id", "/dev/urandom", "random of Python", "uuid1 of Python", "uuid4 of Python", "secrets of Python",
}

// TestForksDiffer: no two forks of a sandbox have the same id, token, name, address, machine-id or
// random numbers, and none has the machine-id of the sandbox, which a program has written.
func TestForksDiffer(t *testing.T) {
	t.Parallel()
	forks := random.Long(16, 64)
	s := conformance.Start(t, onLocal(newMachines()), conformance.Plan{})
	parent := s.Running(t, conformance.Limited(conformance.Request(baseImage, "sleep", "1000"), "1", "128Mi"))
	s.Enter(t, parent).Want(t, "echo 0123456789abcdef0123456789abcdef >/etc/machine-id", "")
	answer := s.Send(t, http.MethodPost, "/v1/sandboxes/"+parent+"/fork", fmt.Sprintf(`{"count":%d,"timeout":600}`, forks), "Prefer", "wait=60")
	list, err := conformance.Decode[lifecycle.ForkList](answer)
	if err != nil || answer.Status != http.StatusAccepted || len(list.Items) != forks {
		t.Fatalf("fork: %s, %v", answer, err)
	}
	seen, boots := map[string]string{}, map[string]bool{}
	differs := func(id, name, value string) {
		t.Helper()
		if other, ok := seen[name+value]; ok || strings.TrimSpace(value) == "" {
			t.Errorf("the %s of sandbox %s is %q, also in %q", name, id, value, other)
		}
		seen[name+value] = id
	}
	boxes := []string{parent}
	for _, item := range list.Items {
		if item.Sandbox == nil {
			t.Fatalf("a sandbox was not created: %+v", item.Error)
		}
		boxes = append(boxes, item.Sandbox.ID)
	}
	for _, id := range boxes {
		s.Await(t, id, "Running")
		differs(id, "id", id)
		differs(id, "token", fmt.Sprint(s.Endpoint(t, id, conformance.DaemonPort).Headers))
		got := s.Enter(t, id).Run(t, identity)
		lines := strings.Split(strings.TrimSpace(got.Stdout), "\n")
		if got.Code != 0 || len(lines) != len(identityNames)+1 {
			t.Fatalf("the identity of sandbox %s: %+v", id, got)
		}
		for i, name := range identityNames {
			differs(id, name, lines[i])
		}
		boots[lines[len(identityNames)]] = true
	}
	if len(boots) != 1 {
		t.Errorf("the boot id is the machine's, and there are %d", len(boots))
	}
	// It stays for as long as the sandbox, and is not part of its snapshots.
	const own = "cat /etc/machine-id"
	before := s.Enter(t, boxes[1]).Run(t, own).Stdout
	s.Enter(t, boxes[1]).Want(t, "grep -c '^[0-9a-f]\\{32\\}$' /etc/machine-id", "1\n")
	taken, err := conformance.Decode[lifecycle.Snapshot](s.Send(t, http.MethodPost, "/v1/sandboxes/"+boxes[1]+"/snapshots", "", "Prefer", "wait=60"))
	if err != nil || taken.Status.State != "Ready" {
		t.Fatalf("the snapshot is %+v, %v", taken, err)
	}
	if got := s.Send(t, http.MethodPost, "/v1/sandboxes/"+boxes[1]+"/rollback", fmt.Sprintf(`{"snapshotId":%q}`, taken.ID), "Prefer", "wait=60"); got.Status != http.StatusAccepted {
		t.Fatalf("rollback: %s", got)
	}
	s.Await(t, boxes[1], "Running")
	s.Enter(t, boxes[1]).Want(t, own, before)
}

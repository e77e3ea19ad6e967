package manager

import (
	"context"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// leaseAt is a lock in memory.
type leaseAt struct {
	resourcelock.Interface
	record *resourcelock.LeaderElectionRecord
	raw    string
}

func (l *leaseAt) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if l.record == nil {
		return nil, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "leases"}, "x")
	}
	return l.record, []byte(l.raw), nil
}

func (l *leaseAt) Create(_ context.Context, record resourcelock.LeaderElectionRecord) error {
	l.record = &record
	return nil
}

func (l *leaseAt) Update(_ context.Context, record resourcelock.LeaderElectionRecord) error {
	l.record = &record
	return nil
}

func (l *leaseAt) Describe() string { return "old/lease" }

// TestLeaseThatMoved: a controller does not lead while one of an earlier version renews the lease
// in the other namespace, and leads once that has ended, with or without a release of that lease.
func TestLeaseThatMoved(t *testing.T) {
	now := time.Unix(1000, 0)
	before := &leaseAt{record: &resourcelock.LeaderElectionRecord{HolderIdentity: "old",
		LeaseDurationSeconds: 15}, raw: "1"}
	after := new(leaseAt)
	lock := &movedLock{Interface: after, before: before, now: func() time.Time { return now }}
	ours := resourcelock.LeaderElectionRecord{HolderIdentity: "new"}
	for _, step := range []struct {
		pass  time.Duration
		raw   string
		leads bool
	}{{0, "1", false}, {14 * time.Second, "1", false}, {time.Second, "2", false},
		{14 * time.Second, "2", false}, {time.Second, "2", true}} {
		now, before.raw = now.Add(step.pass), step.raw
		if err := lock.Create(t.Context(), ours); (err == nil) != step.leads {
			t.Fatalf("after %v with %s: %v", step.pass, step.raw, err)
		}
	}
	before.raw = "3" // it is not looked at any more
	if err := lock.Update(t.Context(), ours); err != nil {
		t.Errorf("a renewal: %v", err)
	}
	for name, old := range map[string]*leaseAt{
		"none":     {},
		"released": {record: new(resourcelock.LeaderElectionRecord)},
	} {
		lock := &movedLock{Interface: new(leaseAt), before: old, now: time.Now}
		if err := lock.Create(t.Context(), ours); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

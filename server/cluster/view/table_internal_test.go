package view

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/lifecycle"
)

// TestOnlyItsOwnWaitersAreWoken: with many sandboxes and a client waiting for each, a change must
// not wake all of them.
func TestOnlyItsOwnWaitersAreWoken(t *testing.T) {
	table := newTable()
	put := func(id string, version uint64) {
		table.put(&Entry{Version: version, Sandbox: lifecycle.Sandbox{ID: id}, Batch: &v1alpha1.BatchSandbox{ObjectMeta: metav1.ObjectMeta{Name: id}}})
	}
	woken := func(changed <-chan struct{}) bool {
		select {
		case <-changed:
			return true
		default:
			return false
		}
	}
	put("a", 1)
	put("b", 2)
	_, first := table.follow("a")
	_, second := table.follow("a")
	put("b", 3)
	table.remove("b", 4, metav1.Now().Time)
	if woken(first) || woken(second) {
		t.Error("woken by changes of another sandbox")
	}
	put("a", 5)
	if !woken(first) || !woken(second) {
		t.Error("not woken by a change")
	}
	_, third := table.follow("a")
	table.remove("a", 6, metav1.Now().Time)
	if !woken(third) {
		t.Error("not woken by the removal")
	}
	if len(table.changed) != 0 {
		t.Errorf("%d channels are left", len(table.changed))
	}
}

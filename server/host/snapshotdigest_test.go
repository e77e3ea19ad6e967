package host_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/rs/zerolog"

	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

// awaitDigest waits until a snapshot has a digest, and returns it.
func (m *machine) awaitDigest(id string) (digest string) {
	m.t.Helper()
	wait.Until(m.t, "snapshot "+id+" has a digest", func() bool {
		digest = m.snapshot(id).TreeDigest
		return digest != ""
	})
	return digest
}

// TestDigests: a snapshot that is Ready gets its digest later, which is stored and no event, also
// when another one has none, and from the next service when this one ends before.
func TestDigests(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	m.engine.write(container(id), "first")
	hold := newGate()
	m.engine.failBefore(callDigest, hold.fault)
	first := m.keep(id)
	hold.await(t)
	if first.TreeDigest != "" || m.snapshot(first.ID).TreeDigest != "" {
		t.Error("a snapshot has a digest before it is made")
	}
	m.host.Close()
	close(hold.open)
	m.engine.failBefore(callDigest, nil)
	m.start()
	if got := m.awaitDigest(first.ID); got != "sha256:first" {
		t.Errorf("the digest is %s", got)
	}
	broken := m.oneFailure(callDigest)
	without := m.keep(id)
	wait.For(t, "the engine was asked", broken)
	m.engine.write(container(id), "second")
	if second := m.keep(id); m.awaitDigest(second.ID) != "sha256:second" {
		t.Errorf("the digest is %s", m.snapshot(second.ID).TreeDigest)
	}
	if got := m.snapshot(without.ID).TreeDigest; got != "" {
		t.Errorf("a snapshot without a digest has %s", got)
	}
	if got := m.statesOf(id, first.ID); len(got) != 2 {
		t.Errorf("the events have %v", got)
	}
	m.host.Close()
	stored, err := m.store.LoadSnapshots(t.Context())
	if err != nil || len(stored) != 3 {
		t.Fatalf("the store has %+v, %v", stored, err)
	}
	for _, s := range stored {
		if (s.TreeDigest == "") != (s.ID == without.ID) {
			t.Errorf("the store has the digest %q of %s", s.TreeDigest, s.ID)
		}
	}
	m.start()
	if got := m.awaitDigest(without.ID); got != "sha256:first" {
		t.Errorf("the next service makes the digest %s", got)
	}
}

// oneFailure has the next call fail, and closes the channel then.
func (m *machine) oneFailure(call string) <-chan struct{} {
	asked := make(chan struct{})
	m.engine.failBefore(call, func(context.Context, string) error {
		select {
		case <-asked:
			return nil
		default:
			close(asked)
			return errors.New("files that have no digest")
		}
	})
	return asked
}

// TestDigestOfDeleted: a snapshot whose digest is being made can be deleted.
func TestDigestOfDeleted(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	hold := newGate()
	m.engine.failBefore(callDigest, hold.fault)
	kept := m.keep(id)
	hold.await(t)
	if err := m.host.DeleteSnapshot(t.Context(), kept.ID); err != nil {
		t.Fatal(err)
	}
	m.awaitRemoval(kept.ID)
	m.engine.failBefore(callDigest, nil)
	close(hold.open)
	m.engine.write(container(id), "next")
	if next := m.keep(id); next.Status.State != lifecycle.SnapshotReady || m.awaitDigest(next.ID) != "sha256:next" {
		t.Errorf("the next snapshot is %+v", next)
	}
}

// TestDigestOfLost: a snapshot that turns out to be lost while its digest is made gets none, and
// the log has no failure of the digest.
func TestDigestOfLost(t *testing.T) {
	m := newMachine(t)
	var log bytes.Buffer
	m.options.Logger = zerolog.New(zerolog.SyncWriter(&log))
	m.start()
	id := m.running()
	hold := newGate()
	m.engine.failBefore(callDigest, hold.fault)
	lost := m.keep(id)
	hold.await(t)
	if err := m.host.LoseSnapshot(t.Context(), lost.ID); err != nil {
		t.Fatal(err)
	}
	m.engine.failBefore(callDigest, nil)
	close(hold.open)
	m.awaitDigest(m.keep(id).ID)
	if got := m.snapshot(lost.ID); got.Status.State != lifecycle.SnapshotFailed || got.TreeDigest != "" {
		t.Errorf("the lost snapshot is %+v", got)
	}
	m.host.Close()
	if bytes.Contains(log.Bytes(), []byte("digest")) {
		t.Errorf("the log has %s", log.Bytes())
	}
}

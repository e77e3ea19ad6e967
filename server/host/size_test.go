package host_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/store"
)

// TestLargestRecord: what is kept of a create follows what was sent, in the store and at the
// engine, and the record can be rebuilt from the container.
func TestLargestRecord(t *testing.T) {
	const atMost = 3 << 19 // of about a MiB that was sent
	s := spec()
	s.Metadata = map[string]string{}
	for i := range 250 { // characters that JSON in HTML has in six bytes
		s.Metadata[fmt.Sprint(i)] = strings.Repeat("<", lifecycle.MaxMetadataValue)
	}
	m := newMachine(t).start()
	created, err := m.host.Create(t.Context(), s, lifecycle.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m.await(created.ID, lifecycle.StateRunning)
	encoded, err := lifecycle.EncodeJSON(m.host.RecordOf(created.ID))
	if err != nil || len(encoded) > atMost {
		t.Errorf("the record has %d bytes, %v", len(encoded), err)
	}
	made, err := m.engine.Inspect(t.Context(), container(created.ID))
	if err != nil {
		t.Fatal(err)
	}
	if label := made.Labels[lifecycle.LabelPrefix+"record"]; len(label) > atMost {
		t.Errorf("the label of the record has %d bytes", len(label))
	}
	m.host.Close()
	lost, err := store.Open(t.TempDir(), zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lost.Close() })
	m.store.Store, m.store.states = lost, map[string]lifecycle.State{}
	m.start()
	m.await(created.ID, lifecycle.StateRunning)
	if got := m.get(created.ID); !maps.Equal(got.Metadata, s.Metadata) || !slices.Equal(got.Entrypoint, s.Entrypoint) {
		t.Errorf("rebuilt with %d pairs and %q", len(got.Metadata), got.Entrypoint)
	}
}

// TestRecordOfAnEarlierVersion: its spec had copies of what the sandbox has, which the next change
// leaves out.
func TestRecordOfAnEarlierVersion(t *testing.T) {
	m := newMachine(t)
	r := m.record("earlier", lifecycle.StatePending)
	r.Spec.Metadata = map[string]string{"name": "earlier"}
	r.Sandbox.Metadata = r.Spec.Metadata
	m.had(r, "")
	adopted := m.record("adopted", lifecycle.StatePending)
	adopted.Sandbox.Metadata, adopted.Spec.Metadata = r.Spec.Metadata, r.Spec.Metadata
	m.engine.put(m.containerOf(adopted, engine.StatusRunning))
	m.start()
	for _, id := range []string{"earlier", "adopted"} {
		m.await(id, lifecycle.StateRunning)
		record := m.host.RecordOf(id)
		if got := record.Spec; got.Image != "" || got.Metadata != nil || got.Entrypoint != nil || got.Timeout != r.Spec.Timeout {
			t.Errorf("%s: the spec is %+v", id, got)
		}
		if got := record.Sandbox; got.Image != "busybox" || got.Metadata["name"] != "earlier" || len(got.Entrypoint) != 2 {
			t.Errorf("%s: the sandbox is %+v", id, got)
		}
	}
}

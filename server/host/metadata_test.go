package host_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"

	"sandbox.internal/server/lifecycle"
)

func TestUpdateMetadata(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	text := func(s string) *string { return &s }
	update := func(patch map[string]*string) (map[string]string, error) {
		return m.host.UpdateMetadata(context.Background(), id, patch)
	}
	got, err := update(map[string]*string{"a": text("1"), "b": text("2"), "c": nil})
	if err != nil || !maps.Equal(got, map[string]string{"a": "1", "b": "2"}) {
		t.Fatalf("%v, %v", got, err)
	}
	got["a"] = "changed by the caller"
	before := m.stored(id)
	if got, err = update(map[string]*string{"a": text("1"), "c": nil}); err != nil || !maps.Equal(got, map[string]string{"a": "1", "b": "2"}) {
		t.Errorf("%v, %v", got, err)
	}
	if after := m.stored(id); after != before {
		t.Errorf("a patch that changes nothing is reported: %s", after)
	}
	for _, patch := range []map[string]*string{
		{"": text("")}, {lifecycle.LabelPrefix + "x": text("")}, {"long": text(strings.Repeat("x", lifecycle.MaxMetadataValue+1))},
	} {
		if _, err := update(patch); kindOf(err) != lifecycle.KindInvalid {
			t.Errorf("%v: %v", patch, err)
		}
	}
	m.store.fail(callSave, errDisk)
	if _, err := update(map[string]*string{"a": nil}); !errors.Is(err, errDisk) {
		t.Errorf("with a failing store: %v", err)
	}
	m.store.fail(callSave, nil)
	if got := m.get(id).Metadata; !maps.Equal(got, map[string]string{"a": "1", "b": "2"}) {
		t.Errorf("metadata: %v", got)
	}
	if err := m.host.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	m.await(id, lifecycle.StateTerminated)
	if _, err := update(map[string]*string{"a": nil}); kindOf(err) != lifecycle.KindConflict {
		t.Errorf("of an ended sandbox: %v", err)
	}
	if _, err := m.host.UpdateMetadata(t.Context(), "unknown", nil); kindOf(err) != lifecycle.KindNotFound {
		t.Errorf("of no sandbox: %v", err)
	}
}

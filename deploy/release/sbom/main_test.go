package main

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"sandbox.internal/test/program"
)

// TestBill: a program's bill of materials has the modules that it is linked from, the standard
// library, and the program with its digest; every reference leads to a component; and the same
// program makes the same bytes.
func TestBill(t *testing.T) {
	directory := t.TempDir()
	if err := program.Build(t.Context(), directory, "sandbox.internal/server/cmd/sandbox-keeper"); err != nil {
		t.Fatal(err)
	}
	keeper := directory + "/sandbox-keeper"
	var first, second bytes.Buffer
	for _, out := range []*bytes.Buffer{&first, &second} {
		if err := write(out, "sandbox", "v1.2.3", time.Unix(1767225600, 0), []string{keeper}); err != nil {
			t.Fatal(err)
		}
	}
	if first.String() != second.String() {
		t.Error("the same program makes other bytes")
	}
	var got bom
	if err := json.Unmarshal(first.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Metadata.Timestamp != "2026-01-01T00:00:00Z" || got.Metadata.Component.Version != "v1.2.3" {
		t.Errorf("metadata %+v", got.Metadata)
	}
	refs := []string{got.Metadata.Component.Ref}
	for _, c := range got.Components {
		refs = append(refs, c.Ref)
	}
	for _, d := range got.Dependencies {
		for _, ref := range append(d.DependsOn, d.Ref) {
			if !slices.Contains(refs, ref) {
				t.Errorf("no component %s", ref)
			}
		}
	}
	for _, name := range []string{"sandbox-keeper", "std", "golang.org/x/sys"} {
		if !slices.ContainsFunc(got.Components, func(c component) bool { return c.Name == name && c.Version != "" }) {
			t.Errorf("no component %s with a version", name)
		}
	}
	text := directory + "/text"
	if err := os.WriteFile(text, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := write(&first, "sandbox", "v1.2.3", time.Unix(0, 0), []string{text}); err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("a file that is no program: %v, want an error that names it", err)
	}
}

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReportWithAFloorOfNothing: a server that uses no processor time at all is a floor without a ratio.
func TestReportWithAFloorOfNothing(t *testing.T) {
	var p pair
	p.ours.add(0.02)
	p.floor.add(0)
	b := &bench{results: map[string]pair{rowEgressCPU: p}}
	folder := t.TempDir()
	if err := b.report(0).write(folder); err != nil {
		t.Fatal(err)
	}
	encoded, err := os.ReadFile(filepath.Join(folder, "latest.json"))
	if err != nil {
		t.Fatal(err)
	}
	var read report
	if err := json.Unmarshal(encoded, &read); err != nil {
		t.Fatal(err)
	}
	if len(read.Rows) != 1 || read.Rows[0].Ratio != nil || read.Rows[0].Ours.Median != 0.02 || !read.Rows[0].Target.Met {
		t.Errorf("%s", encoded)
	}
	table, err := os.ReadFile(filepath.Join(folder, "latest.md"))
	if err != nil || !strings.Contains(string(table), "| egress-cpu | % | 0.02 | 0.02 | 0 | 0 | - | 100% |") {
		t.Errorf("%v:\n%s", err, table)
	}
}

package main

import (
	"fmt"
	"slices"
	"strings"

	"sandbox.internal/bench/e2b"
	"sandbox.internal/bench/egress"
	"sandbox.internal/bench/ingress"
	"sandbox.internal/bench/inside"
	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/pool"
	"sandbox.internal/bench/sandboxes"
)

// groups lists every row, in the order of the report, beside what measures it.
func groups() []measure.Group {
	return slices.Concat(
		[]measure.Group{inside.Commands(), inside.Cells(), inside.Streams(), inside.Transfers(), inside.Search()},
		inside.Memory(),
		sandboxes.Lifecycle(),
		[]measure.Group{sandboxes.Stored(), sandboxes.ManyAtOnce()},
		sandboxes.LocalCreates(),
		[]measure.Group{sandboxes.Pull()},
		e2b.Rows(),
		[]measure.Group{e2b.League(), sandboxes.Waits()},
		sandboxes.Snapshots(),
		[]measure.Group{sandboxes.MemorySnapshots(), sandboxes.Wake(), sandboxes.Idle(), pool.Rows(), ingress.Rows(), egress.Rows()},
	)
}

// rows lists them without what measures them.
func rows() []measure.Row {
	var rows []measure.Row
	for _, g := range groups() {
		rows = append(rows, g.Rows...)
	}
	return rows
}

// beginning returns the names of the rows that begin with one of the prefixes; none without
// prefixes.
func beginning(prefixes []string) ([]string, error) {
	var names []string
	for _, prefix := range prefixes {
		before := len(names)
		for _, row := range rows() {
			if strings.HasPrefix(row.Name, prefix) {
				names = append(names, row.Name)
			}
		}
		if len(names) == before {
			return nil, fmt.Errorf("--only: no row begins with %q", prefix)
		}
	}
	return names, nil
}

package main

import (
	"fmt"
	"slices"
	"strings"
)

// groups lists every row, in the order of the report, beside what measures it.
func groups() []group {
	return slices.Concat(
		[]group{commands(), cells(), streams(), transfers(), search()},
		memory(),
		lifecycle(),
		[]group{stored(), manyAtOnce()},
		localCreates(),
		[]group{pull()},
		e2b(),
		[]group{league(), waits()},
		snapshots(),
		[]group{memorySnapshots(), wake(), idle(), pool(), ingress(), egress()},
	)
}

// rows lists them without what measures them.
func rows() []row {
	var rows []row
	for _, g := range groups() {
		rows = append(rows, g.rows...)
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
			if strings.HasPrefix(row.name, prefix) {
				names = append(names, row.name)
			}
		}
		if len(names) == before {
			return nil, fmt.Errorf("--only: no row begins with %q", prefix)
		}
	}
	return names, nil
}

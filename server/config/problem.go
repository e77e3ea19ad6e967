package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Problem is one thing that is wrong with the configuration. Errors of [Load]
// and [Config.Validate] are problems joined with [errors.Join].
type Problem struct {
	// File is the file's path as it was given; empty for an environment variable
	// and for a configuration that did not come from a file.
	File string
	// Line counts from 1; 0 when the key is not in the file.
	Line int
	// Key is the full dotted key (server.keys[0].name), or the variable's name.
	// It is empty when the file cannot be read as TOML at that place.
	Key string
	// Err is the rule that is broken.
	Err error
}

// Error gives "file:line: key: rule", without the parts that are unknown.
func (p *Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d", p.Line)
	}
	for _, part := range []string{p.Key, p.Err.Error()} {
		if part == "" {
			continue
		}
		if b.Len() > 0 {
			b.WriteString(": ")
		}
		b.WriteString(part)
	}
	return b.String()
}

// Unwrap returns the rule's error.
func (p *Problem) Unwrap() error { return p.Err }

// problems collects, so that an operator mends a file in one go.
type problems []*Problem

// add records a problem unless the same key, or the section or array that holds
// it, already has one: a value of the wrong type was never read, so whatever else is
// said of it would mislead.
func (p *problems) add(key, format string, args ...any) {
	for _, earlier := range *p {
		if rest, ok := strings.CutPrefix(key, earlier.Key); ok &&
			(rest == "" || rest[0] == '.' || rest[0] == '[') {
			return
		}
	}
	*p = append(*p, &Problem{Key: key, Err: fmt.Errorf(format, args...)})
}

// locate fills in where each problem is, and puts them in the file's order.
// Problems of absent keys come last.
func (p problems) locate(file string, idx *index) {
	for _, problem := range p {
		problem.File = file
		problem.Line = idx.line(problem.Key)
	}
	slices.SortStableFunc(p, func(a, b *Problem) int {
		switch {
		case a.Line == b.Line:
			return strings.Compare(a.Key, b.Key)
		case a.Line == 0:
			return 1
		case b.Line == 0:
			return -1
		}
		return a.Line - b.Line
	})
}

func (p problems) join() error {
	errs := make([]error, len(p))
	for i, problem := range p {
		errs[i] = problem
	}
	return errors.Join(errs...)
}

package command_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandbox.internal/execd/command"
	"sandbox.internal/execd/internal/eventlog"
)

// TestArguments: no shell reads a program's arguments.
func TestArguments(t *testing.T) {
	m := newManager(t)
	c := start(t, m, command.Spec{Argv: []string{"printf", `[%s]\n`, "$HOME", "a  b", "", "it's; exit 3"}})
	awaitEnd(t, c)
	var printed []string
	for _, e := range follow(t, c, 0, nil) {
		if e.Type == eventlog.TypeStdout {
			printed = append(printed, e.text)
		}
	}
	if got, want := strings.Join(printed, " "), "[$HOME] [a  b] [] [it's; exit 3]"; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
	if got, want := c.Status().Content, `printf '[%s]\n' '$HOME' 'a  b' '' 'it'\''s; exit 3'`; got != want {
		t.Errorf("the content is %s, want %s", got, want)
	}
	if code := c.Status().ExitCode; code == nil || *code != 0 {
		t.Errorf("the exit code is %v", code)
	}
}

// TestProgramOfArguments: the program is searched for as a shell does, and what cannot be run is
// refused by its name.
func TestProgramOfArguments(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "own"), []byte("#!/bin/sh\necho \"$0 $1\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "garbage"), []byte("\x00\x01"), 0o700); err != nil {
		t.Fatal(err)
	}
	m := newManager(t)
	awaitEnd(t, start(t, m, command.Spec{Argv: []string{"./own", "x"}, Dir: dir}))
	awaitEnd(t, start(t, m, command.Spec{Argv: []string{"own", "x"}, Env: map[string]string{"PATH": dir}}))
	for name, spec := range map[string]command.Spec{
		`command: "no-such-program" is no program`: {Argv: []string{"no-such-program"}},
		`command: "` + dir:                         {Argv: []string{filepath.Join(dir, "garbage")}},
		"command: must not be empty":               {Argv: []string{"", "x"}},
		"args[0]: ":                                {Argv: []string{"true", "a\x00b"}},
	} {
		if _, err := m.Start(spec); err == nil || !strings.HasPrefix(err.Error(), name) {
			t.Errorf("%q: %v, want %q", spec.Argv, err, name)
		}
	}
}

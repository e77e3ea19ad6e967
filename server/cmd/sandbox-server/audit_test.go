package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/server/audit"
	"sandbox.internal/server/commandline"
)

// chain writes an audit log that was rotated once, and returns both files, the old one first.
func chain(t *testing.T) (old, current string) {
	t.Helper()
	current = filepath.Join(t.TempDir(), "audit.log")
	old = current + ".1"
	log, err := audit.Open(current, zerolog.Nop(), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if i == 1 {
			if err := os.Rename(current, old); err != nil {
				t.Fatal(err)
			}
			if err := log.Reopen(); err != nil {
				t.Fatal(err)
			}
		}
		for range 3 {
			if err := log.Conclude(audit.Entry{Operation: "createSandbox", Status: 400}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	return old, current
}

func TestAuditVerify(t *testing.T) {
	old, current := chain(t)
	configured := write(t, "[server]\naudit_log = \""+current+"\"\n[runtime]\ntype = \"docker\"\nexecd_image = \"e\"\n")
	without := write(t, "[runtime]\ntype = \"docker\"\nexecd_image = \"e\"\n")
	code, stdout, stderr := command(t, "audit", "verify", "--file", old)
	if code != 0 {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	_, hash, _ := strings.Cut(strings.TrimSpace(stdout), "last hash ")

	content, err := os.ReadFile(old)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(content), "\n")
	cut := write(t, strings.Join(lines[:3], ""))
	changed := write(t, strings.Replace(string(content), "createSandbox", "deleteSandbox", 1))
	torn := write(t, string(content[:len(content)-9]))

	for name, test := range map[string]struct {
		args []string
		code int
		want []string
	}{
		"old":                   {[]string{"audit", "verify", "--file", old}, 0, []string{old + ": OK, 4 lines (1 to 4), last hash "}},
		"configured":            {[]string{"--config", configured, "audit", "verify"}, 0, []string{current + ": OK, 4 lines (5 to 8)", "continues an earlier file whose last hash is " + hash}},
		"both":                  {[]string{"audit", "verify", "--file", old, "--file", current, "--expect", hash}, 0, []string{"(1 to 4)", "(5 to 8)"}},
		"wrong order":           {[]string{"audit", "verify", "--file", current, "--file", old}, commandline.ExitFailure, []string{old + ": line 1 does not continue " + current}},
		"cut off":               {[]string{"audit", "verify", "--file", cut}, 0, []string{"3 lines"}},
		"cut off, hash kept":    {[]string{"audit", "verify", "--file", cut, "--expect", hash}, commandline.ExitFailure, []string{hash, "cut off at the end"}},
		"changed":               {[]string{"audit", "verify", "--file", changed}, commandline.ExitFailure, []string{changed + ": line 2 ", "was changed"}},
		"torn":                  {[]string{"audit", "verify", "--file", torn}, commandline.ExitFailure, []string{torn + ": line 4 is incomplete"}},
		"no such file":          {[]string{"audit", "verify", "--file", old + ".none"}, commandline.ExitFailure, []string{old + ".none"}},
		"none configured":       {[]string{"--config", without, "audit", "verify"}, commandline.ExitFailure, []string{"server.audit_log is not set"}},
		"unknown flag":          {[]string{"audit", "verify", "--fiel", old}, commandline.ExitUsage, []string{"fiel", "See 'sandbox-server audit verify --help'"}},
		"argument without flag": {[]string{"audit", "verify", old}, commandline.ExitUsage, []string{old}},
		"no hash":               {[]string{"audit", "verify", "--file", old, "--expect", "abc"}, commandline.ExitUsage, []string{"--expect"}},
	} {
		code, stdout, stderr := command(t, test.args...)
		if code != test.code {
			t.Errorf("%s: exit %d, want %d: %s%s", name, code, test.code, stdout, stderr)
		}
		for _, want := range test.want {
			if !strings.Contains(stdout+stderr, want) {
				t.Errorf("%s: %q is missing in:\n%s%s", name, want, stdout, stderr)
			}
		}
	}
}

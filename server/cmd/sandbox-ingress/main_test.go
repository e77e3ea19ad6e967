package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"sandbox.internal/server/commandline"
	"sandbox.internal/server/commandline/commandlinetest"
	"sandbox.internal/server/ingress"
)

// parse returns what a command line stands for.
func parse(t *testing.T, args ...string) (settings ingress.Settings, level zerolog.Level) {
	t.Helper()
	root := newRoot(func(s ingress.Settings, l zerolog.Level, _ io.Writer) error {
		settings, level = s, l
		return nil
	})
	var errs bytes.Buffer
	if code := commandline.Run(root, args, io.Discard, &errs); code != 0 {
		t.Fatalf("%q: exit %d: %s", args, code, errs.String())
	}
	return settings, level
}

// run carries out a command line as the program does.
func run(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = commandline.Run(newRoot(serve), args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestCommandLine(t *testing.T) {
	t.Setenv("SERVICE_API_KEY", "of-the-environment")
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("of-the-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	usual := []string{"--mode", "uri", "--service", "http://127.0.0.1:8080"}
	s, level := parse(t, usual...)
	if s.Key != "of-the-environment" || s.Grace != 30*time.Second || level != zerolog.InfoLevel {
		t.Errorf("%+v, %v", s, level)
	}
	s, level = parse(t, append(usual, "--service-key-file", file, "--grace", "5s",
		"--max-sandbox-connections", "7", "--log-level", "DEBUG")...)
	if s.Key != "of-the-file" || s.Grace != 5*time.Second || s.SandboxConnections != 7 ||
		level != zerolog.DebugLevel {
		t.Errorf("%+v, %v", s, level)
	}
	for want, args := range map[string][]string{
		"--mode: is required":     nil,
		"unexpected argument":     append(usual, "x"),
		"--log-level":             append(usual, "--log-level", "loud"),
		"--service-key-file":      append(usual, "--service-key-file", file+"x"),
		"unknown flag: --port":    append(usual, "--port", "1"),
		"--domain: must be":       {"--mode", "wildcard", "--service", "http://127.0.0.1:8080"},
		"exactly one of them":     append(usual, "--routes", file),
		"--service, --kubernetes": append(usual, "--kubernetes"),
		"without --kubernetes":    append(usual, "--kubernetes-namespace", "x"),
		"--max-connections: must": append(usual, "--max-connections", "0"),
	} {
		code, _, stderr := run(args...)
		if code != commandline.ExitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%q: exit %d: %s", args, code, stderr)
		}
	}
	missing := file + "x"
	code, _, stderr := run("--mode", "uri", "--routes", missing)
	if code != commandline.ExitFailure || !strings.Contains(stderr, "--routes") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	code, _, stderr = run("--mode", "uri", "--listen", "127.0.0.1:0", "--admin", "",
		"--kubernetes", "--kubeconfig-path", missing)
	if code != commandline.ExitFailure || !strings.Contains(stderr, "kubeconfig") {
		t.Errorf("a cluster that cannot be reached: exit %d: %s", code, stderr)
	}
	if code, stdout, _ := run("version"); code != 0 || !strings.Contains(stdout, "sandbox-ingress ") {
		t.Errorf("version: exit %d: %s", code, stdout)
	}
}

func TestHelpAndDocumentation(t *testing.T) {
	program := func() *cobra.Command { return newRoot(serve) }
	commandlinetest.CheckHelp(t, program)
	commandlinetest.CheckDocumented(t, program(), "../../../docs/ingress.md", "## Flags")
}

package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

func TestCommandLine(t *testing.T) {
	t.Setenv("SERVICE_API_KEY", "of-the-environment")
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("of-the-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	usual := []string{"--mode", "uri", "--service", "http://127.0.0.1:8080"}
	s, level, err := parse(usual, io.Discard)
	if err != nil || s.Key != "of-the-environment" || s.Grace != 30*time.Second || level != zerolog.InfoLevel {
		t.Errorf("%+v, %v, %v", s, level, err)
	}
	s, level, err = parse(append(usual, "--service-key-file", file, "--grace", "5s", "--max-sandbox-connections", "7", "--log-level", "DEBUG"), io.Discard)
	if err != nil || s.Key != "of-the-file" || s.Grace != 5*time.Second || s.SandboxConnections != 7 || level != zerolog.DebugLevel {
		t.Errorf("%+v, %v, %v", s, level, err)
	}
	for want, args := range map[string][]string{
		"--mode: is required":     nil,
		"unexpected argument":     append(usual, "x"),
		"--log-level":             append(usual, "--log-level", "loud"),
		"--service-key-file":      append(usual, "--service-key-file", file+"x"),
		"not defined":             append(usual, "--port", "1"),
		"--domain: must be":       {"--mode", "wildcard", "--service", "http://127.0.0.1:8080"},
		"exactly one of them":     append(usual, "--routes", file),
		"--service, --kubernetes": append(usual, "--kubernetes"),
		"without --kubernetes":    append(usual, "--kubernetes-namespace", "x"),
		"--max-connections: must": append(usual, "--max-connections", "0"),
	} {
		var out, errs bytes.Buffer
		if code := run(args, &out, &errs); code != exitUsage || !strings.Contains(errs.String(), want) || !strings.Contains(errs.String(), "usage:") {
			t.Errorf("%q: exit %d: %s", args, code, errs.String())
		}
	}
	var out, errs bytes.Buffer
	if code := run([]string{"--mode", "uri", "--routes", file + "x"}, &out, &errs); code != exitFailure || !strings.Contains(errs.String(), "--routes") {
		t.Errorf("exit %d: %s", code, errs.String())
	}
	errs.Reset()
	if code := run([]string{"--mode", "uri", "--listen", "127.0.0.1:0", "--admin", "", "--kubernetes", "--kubeconfig-path", file + "x"}, &out, &errs); code != exitFailure || !strings.Contains(errs.String(), "kubeconfig") {
		t.Errorf("a cluster that cannot be reached: exit %d: %s", code, errs.String())
	}
	out.Reset()
	if code := run([]string{"--help"}, &out, io.Discard); code != 0 || out.String() != usage {
		t.Errorf("help: exit %d: %s", code, out.String())
	}
	if code := run([]string{"version"}, &out, io.Discard); code != 0 || !strings.Contains(out.String(), "sandbox-ingress ") {
		t.Errorf("version: exit %d", code)
	}
}

// TestEveryFlagIsDocumented compares what --help and the documentation say with the flags that
// there are.
func TestEveryFlagIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/ingress.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`flags\.\w+\((?:&[sk]\.\w+, )?"([a-z-]+)"`).FindAllSubmatch(source, -1)
	if len(names) < 15 {
		t.Fatalf("only %d flags found", len(names))
	}
	for _, name := range names {
		if text := "--" + string(name[1]); !strings.Contains(usage, "  "+text+" ") || !strings.Contains(string(page), "| `"+text+"` |") {
			t.Errorf("%s is missing in --help or in docs/ingress.md", text)
		}
	}
}

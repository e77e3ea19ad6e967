package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestConfigInitFitsTheMachine: what it writes is for the engine that is there, and config check
// has nothing to say about it.
func TestConfigInitFitsTheMachine(t *testing.T) {
	programs, cache := t.TempDir(), t.TempDir()
	for _, path := range []string{filepath.Join(programs, "crun"), filepath.Join(cache, "archives", "execd.tar"), filepath.Join(cache, "archives", "base.tar")} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	socket := filepath.Join(t.TempDir(), "docker.sock")
	engine, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	t.Setenv("HOME", t.TempDir())
	t.Setenv("SANDBOX_CACHE", cache)
	for name, test := range map[string]struct {
		docker, path string
		says         string
		has          []string
	}{
		"an engine that answers":      {"unix://" + socket, programs, "an engine answers at unix://" + socket, []string{`type = "docker"`, "spare_networks = 2", "archives = []"}},
		"no engine, and an OCI one":   {"unix://" + socket + ".none", programs, "runtime.type is local", []string{`type = "local"`, "spare_networks = 0", `archives = ["` + filepath.Join(cache, "archives", "execd.tar") + `", "`}},
		"no engine, and nothing else": {"unix://" + socket + ".none", t.TempDir(), "no engine answers at unix://" + socket + ".none: start one", []string{`type = "docker"`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("DOCKER_HOST", test.docker)
			t.Setenv("PATH", test.path)
			file := filepath.Join(t.TempDir(), "sandbox.toml")
			code, stdout, stderr := command(t, "--config", file, "config", "init")
			if code != 0 || !strings.Contains(stdout, test.says) {
				t.Errorf("exit %d: %s%s; want %q", code, stdout, stderr, test.says)
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range test.has {
				if !strings.Contains(string(text), "\n"+want) {
					t.Errorf("the file has no line %s", want)
				}
			}
			if code, stdout, stderr := command(t, "--config", file, "config", "check"); code != 0 || strings.Contains(stdout, "warning") {
				t.Errorf("check: exit %d: %s%s", code, stdout, stderr)
			}
		})
	}
}

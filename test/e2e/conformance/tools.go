package conformance

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// Building is how long a generator or a compiler may take that has nothing in its caches, on a busy
// machine.
const Building = 10 * time.Minute

// Root returns the directory of the repository, in which the test's package is.
func Root(t *testing.T) string {
	t.Helper()
	directory, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; ; directory = filepath.Dir(directory) {
		if _, err := os.Stat(filepath.Join(directory, "go.mod")); err == nil {
			return directory
		}
		if directory == filepath.Dir(directory) {
			t.Fatal("the test's directory is in no module")
		}
	}
}

// ReadPage returns a page of the repository.
func ReadPage(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(Root(t), file))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// Write writes a file that only its owner reads.
func Write(t *testing.T, directory, file, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(directory, file), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Tool runs a program in a directory and returns what it prints; it must succeed.
func Tool(t *testing.T, directory string, environment []string, name string, args ...string) string {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), Building)
	defer stop()
	if strings.Contains(name, "/") && !filepath.IsAbs(name) { // relative to the directory, and not to where the test is
		var err error
		if name, err = filepath.Abs(filepath.Join(directory, name)); err != nil {
			t.Fatal(err)
		}
	}
	command := exec.CommandContext(ctx, name, args...)
	// The test's own flags are not for modules of others.
	command.Dir, command.Env = directory,
		append(append(os.Environ(), "GOFLAGS=", "GOWORK=off"), environment...)
	command.WaitDelay = time.Minute
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}

// Script runs a script of scripts/ and returns the last line that it prints.
func Script(t *testing.T, name string, args ...string) string {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(Tool(t, Root(t), nil, "scripts/"+name, args...)), "\n")
	return lines[len(lines)-1]
}

// NodePackages returns node_modules with the packages of package-lock.json of a directory, as seen
// from the root of the repository. The lock file is an input of the test then.
func NodePackages(t *testing.T, directory string) string {
	t.Helper()
	for _, input := range []string{"package.json", "package-lock.json"} {
		if _, err := os.ReadFile(filepath.Join(Root(t), directory, input)); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(Script(t, "node.sh", directory), "node_modules")
}

// Node22 returns the path of a Node.js 22, which is a package of npm among those that
// [NodePackages] returned, for programs that do not run with the oldest Node.js that
// scripts/node.sh accepts.
func Node22(t *testing.T, packages string) string {
	t.Helper()
	architecture := map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH]
	node := filepath.Join(packages, "node-linux-"+architecture, "bin", "node")
	if _, err := os.Stat(node); err != nil {
		t.Fatal(err)
	}
	return node
}

// CopyOf copies a directory into a temporary one, where what is generated may be added.
func CopyOf(t *testing.T, directory string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(directory)); err != nil {
		t.Fatal(err)
	}
	return to
}

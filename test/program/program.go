// Package program builds programs of this repository for tests, and makes their sources inputs of
// those tests.
//
// The go command repeats a test's result from its cache until a file that the test itself has
// looked at changes. It does not see what a child process reads: a test that runs `go build` would
// pass on the result of sources that are no longer there.
package program

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// sources is what `go list` prints of each package of this repository's modules: its go.mod, its
// directory, and the files that it embeds.
const sources = `{{$p := .}}{{with .Module}}{{if or .Main .Replace}}{{.GoMod}}{{"\n"}}{{$p.Dir}}{{range $p.EmbedFiles}}{{"\n"}}{{$p.Dir}}/{{.}}{{end}}{{end}}{{end}}`

// Build compiles the programs of packages, given by import path, into the existing directory:
// static, as they ship. Each has the name of its package's directory. The error has what the
// compiler printed.
func Build(ctx context.Context, directory string, packages ...string) error {
	return build(ctx, directory, "", packages)
}

// BuildWith is Build with another value for a variable, PACKAGE.NAME=VALUE.
func BuildWith(ctx context.Context, directory, variable string, packages ...string) error {
	return build(ctx, directory, " -X "+variable, packages)
}

func build(ctx context.Context, directory, linkerFlags string, packages []string) error {
	if err := registerInputs(ctx, packages); err != nil {
		return err
	}
	args := append([]string{"build", "-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false",
		"-ldflags", "-s -w" + linkerFlags, "-o",
		directory + string(filepath.Separator)}, packages...)
	_, err := goCommand(ctx, args...)
	return err
}

// registerInputs opens the directories and files that the packages are made of, which makes them
// inputs of the test that runs. An open directory stands for the names, sizes and times of
// everything in it.
func registerInputs(ctx context.Context, packages []string) error {
	listed, err := goCommand(ctx, append([]string{"list", "-deps", "-f", sources}, packages...)...)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for name := range strings.FieldsFuncSeq(listed, func(r rune) bool { return r == '\n' }) {
		if seen[name] {
			continue
		}
		seen[name] = true
		if filepath.Base(name) == "go.mod" {
			_, _ = os.Stat(filepath.Join(filepath.Dir(name), "go.sum")) // there may be none
		}
		info, err := os.Stat(name)
		if err == nil && info.IsDir() {
			_, err = os.ReadDir(name)
		}
		if err != nil {
			return fmt.Errorf("look at a source of %s: %w", strings.Join(packages, ", "), err)
		}
	}
	return nil
}

func goCommand(ctx context.Context, args ...string) (output string, err error) {
	command := exec.CommandContext(ctx, "go", args...)
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	var stdout, stderr strings.Builder
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", command, err, stderr.String())
	}
	return stdout.String(), nil
}

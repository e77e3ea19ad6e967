// Package gen_test proves that everything generated, here and in the clients, is what its source
// generates, no more and no less.
package gen_test

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var generateLine = regexp.MustCompile(`(?m)^//go:generate (go (?:tool|run) (\S+) (?:-config (\S+) )?(?:-package \w+ )?-o (\S+) (\S+))$`)

// generator is one generate line of tools.go.
type generator struct {
	command []string
	output  string // the file that it writes, relative to the root
}

// generators reads the generate lines, so that this test checks what `go generate`
// does and nothing else. It reads their inputs as well, though only the generator
// needs them: go test repeats a cached result until a file that the test read changes.
func generators(t *testing.T) []generator {
	t.Helper()
	read := func(name string) []byte {
		data, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	read("go.mod") // holds the version of the generator
	var all []generator
	for _, line := range generateLine.FindAllStringSubmatch(string(read("tools.go")), -1) {
		command, tool, config, output, contract := line[1], line[2], line[3], line[4], line[5]
		if config != "" {
			read(config)
		} else {
			sources := []string{"openapi/document/rules.go", "openapi/rules/rules.go", "openapi/rules/check.go"}
			entries, err := os.ReadDir(filepath.Join("..", tool))
			if err != nil {
				t.Fatal(err)
			}
			for _, entry := range entries {
				sources = append(sources, filepath.Join(tool, entry.Name()))
			}
			for _, source := range sources {
				read(source)
			}
		}
		read(contract)
		all = append(all, generator{strings.Fields(command), output})
	}
	tools := string(read("tools.go"))
	// What controller-gen makes is compared beside it, in runtime/kube/v1alpha1, and what scripts
	// make in test/e2e, as they need more than Go.
	lines := strings.Count(tools, "\n//go:generate ")
	for _, elsewhere := range []string{"go tool controller-gen ", "scripts/"} {
		lines -= strings.Count(tools, "\n//go:generate "+elsewhere)
	}
	if len(all) != lines || lines == 0 {
		t.Fatalf("%d of the %d generate lines of tools.go are understood", len(all), lines)
	}
	return all
}

func TestGeneratedCodeIsCurrent(t *testing.T) {
	for _, g := range generators(t) {
		t.Run(g.output, func(t *testing.T) {
			committed, err := os.ReadFile(filepath.Join("..", g.output))
			if err != nil {
				t.Fatal(err)
			}
			fresh := filepath.Join(t.TempDir(), filepath.Base(g.output))
			command := slices.Clone(g.command)
			command[slices.Index(command, g.output)] = fresh
			cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
			cmd.Dir = ".."
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", cmd, err, out)
			}
			generated, err := os.ReadFile(fresh)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(generated, committed) {
				t.Errorf("%s is not what its source generates: run `go generate .` and commit the result", g.output)
			}
		})
	}
}

func TestNothingElseIsHere(t *testing.T) {
	for directory, want := range map[string][]string{
		"gen": {"gen/drift_test.go"}, "clients/go/lifecycle": nil, "clients/go/execd": nil,
	} {
		for _, g := range generators(t) {
			if strings.HasPrefix(g.output, directory+"/") {
				want = append(want, g.output)
			}
		}
		var got []string
		err := fs.WalkDir(os.DirFS(".."), directory, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				got = append(got, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s/ holds\n\t%s\nwant\n\t%s", directory, strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
		}
	}
}

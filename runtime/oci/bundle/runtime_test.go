package bundle_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/runtime/oci/bundle"
)

func TestFind(t *testing.T) {
	byName := runtimeOf(t, "crun")
	if byName.Name != "crun" || byName.Version == "" || !filepath.IsAbs(byName.Path) {
		t.Errorf("found %+v", byName)
	}
	byPath, err := bundle.Find(byName.Path)
	if err != nil || byPath.Name != byName.Name || byPath.Path != byName.Path || byPath.Version != byName.Version {
		t.Errorf("by path: %+v, %v", byPath, err)
	}
	directory := t.TempDir()
	program := func(name, script string) string {
		path := filepath.Join(directory, name)
		write(t, path, "#!/bin/sh\n"+script)
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, test := range map[string]struct{ handler, want string }{
		"missing":       {"no-such-runtime", "no program no-such-runtime"},
		"missing path":  {"/no/such/runtime", "/no/such/runtime"},
		"relative path": {"bin/crun", "neither a name nor an absolute path"},
		"empty":         {"", "neither a name nor an absolute path"},
		"another":       {program("kata", "echo kata version 3"), "none of crun, runc and runsc"},
		"broken":        {program("broken", "echo no such library >&2; exit 127"), "no such library"},
		"no program":    {directory, directory},
	} {
		if found, err := bundle.Find(test.handler); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %+v, %v; want an error with %s", name, found, err, test.want)
		}
	}
}

// TestCommands: what is run of each runtime.
func TestCommands(t *testing.T) {
	directory := t.TempDir()
	for name, want := range map[string][3]string{
		"crun": {
			"--root /r --cgroup-manager=disabled run --detach --bundle /b --pid-file /p id",
			"--root /r --cgroup-manager=disabled run --detach --bundle /b --pid-file /p --preserve-fds 1 id",
			"",
		},
		"runc": {
			"--root /r run --detach --bundle /b --pid-file /p id",
			"--root /r run --detach --bundle /b --pid-file /p --preserve-fds 1 id",
			"",
		},
		"runsc": {
			"--root /r --platform=systrap --network=sandbox --overlay2=none --ignore-cgroups run --detach --bundle /b --pid-file /p id",
			"--root /r --platform=systrap --network=sandbox --overlay2=none --ignore-cgroups run --detach --bundle /b --pid-file /p id",
			"--root /r --platform=systrap --network=sandbox --overlay2=none --ignore-cgroups delete --force id",
		},
	} {
		path := filepath.Join(directory, name)
		write(t, path, "#!/bin/sh\necho "+name+" version 1.2.3\n")
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
		r, err := bundle.Find(path)
		if err != nil {
			t.Fatal(err)
		}
		if r.Version != "1.2.3" {
			t.Errorf("%s: version %s", name, r.Version)
		}
		for i, got := range [][]string{
			r.RunArgs("/r", "/b", "/p", "id", false), r.RunArgs("/r", "/b", "/p", "id", true), r.DeleteArgs("/r", "id"),
		} {
			words := strings.Fields(want[i])
			if len(words) > 0 {
				words = append([]string{path}, words...)
			}
			if !slices.Equal(got, words) {
				t.Errorf("%s: %q, want %q", name, got, words)
			}
		}
	}
}

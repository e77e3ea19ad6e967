package process_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/internal/process"
)

// programs makes a directory with an executable file "tool", a plain file "text" and a directory
// "directory".
func programs(t *testing.T) string {
	t.Helper()
	directory := t.TempDir()
	for name, mode := range map[string]os.FileMode{"tool": 0o755, "text": 0o644} {
		if err := os.WriteFile(filepath.Join(directory, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(directory, "directory"), 0o755); err != nil {
		t.Fatal(err)
	}
	return directory
}

func TestFind(t *testing.T) {
	t.Parallel()
	first, second := programs(t), programs(t)
	env := []string{"PATH=" + t.TempDir() + ":relative::" + first + ":" + second}
	for _, test := range []struct {
		name, dir, want string
		env             []string
	}{
		{"tool", "/", filepath.Join(first, "tool"), env},
		{"text", "/", "", env},
		{"directory", "/", "", env},
		{"tool", second, "", nil}, // the working directory is not searched
		{"./tool", second, filepath.Join(second, "tool"), env},
		{filepath.Join(second, "tool"), "/", filepath.Join(second, "tool"), nil},
		{"./text", second, "", env},
	} {
		if got := process.Find(test.name, test.dir, test.env); got != test.want {
			t.Errorf("%q in %s with %q: got %q, want %q", test.name, test.dir, test.env, got, test.want)
		}
	}
	// A PATH without the system's directories does not hide what is there.
	if got := process.Find("sh", "/", []string{"PATH=" + first}); got == "" {
		t.Error("sh is not found")
	}
}

func TestShell(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	bash := filepath.Join(directory, "bash")
	if err := os.WriteFile(bash, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := process.Shell([]string{"PATH=" + directory}); got != bash {
		t.Errorf("got %q, want %q", got, bash)
	}
}

func TestLookPath(t *testing.T) {
	t.Parallel()
	directory := programs(t)
	env := []string{"PATH=/nowhere:" + directory}
	if got, err := process.LookPath("tool", env); err != nil || got != filepath.Join(directory, "tool") {
		t.Errorf("tool: got %q, %v", got, err)
	}
	for _, test := range []struct {
		name string
		code int
	}{{"text", 126}, {"directory", 127}, {"missing", 127}} {
		got, err := process.LookPath(test.name, env)
		if err == nil || process.StartFailure(err) != test.code {
			t.Errorf("%s: got %q, %v, want an error for exit code %d", test.name, got, err, test.code)
		}
	}
	if code := process.StartFailure(unix.ENOTDIR); code != 127 {
		t.Errorf("below a file: exit code %d, want 127", code)
	}
}

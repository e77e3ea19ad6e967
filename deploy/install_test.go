// Package deploy_test tests what `make install` does to a machine.
package deploy_test

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/test/program"
	"sandbox.internal/test/wait"
)

const (
	script = "../scripts/install.sh"
	unit   = "systemd/sandbox-server.service"
)

// TestInstall installs below a directory that has files of others, installs again over the list of
// an older version, and uninstalls: what was there before is there again, and nothing else.
func TestInstall(t *testing.T) {
	for _, input := range []string{script, "install.sh", "../scripts/tree.sh", "../scripts/images.sh"} {
		_ = read(t, input) // makes it an input of this test
	}
	programs, root := t.TempDir(), t.TempDir()
	tool := filepath.Join(programs, "sandbox")
	if err := program.Build(t.Context(), programs, "sandbox.internal/clients/cmd/sandbox"); err != nil {
		t.Fatal(err)
	}
	// The script copies the others without running them: any file will do.
	for _, name := range []string{"sandbox-server", "sandbox-keeper", "sandbox-ingress", "sandbox-controller"} {
		write(t, filepath.Join(programs, name), name)
	}
	prefix := filepath.Join(root, "opt/sandbox")
	write(t, filepath.Join(prefix, "bin/other"), "other")
	write(t, filepath.Join(prefix, "share/man/man1/sandbox-other.1"), "other")
	before := snapshot(t, root)

	install := func(action string) (string, error) {
		command := exec.CommandContext(t.Context(), script, action)
		command.Env = append(os.Environ(), "PREFIX=/opt/sandbox", "DESTDIR="+root, "PROGRAMS="+programs)
		output, err := command.CombinedOutput()
		return string(output), err
	}
	must := func(action string) {
		t.Helper()
		if output, err := install(action); err != nil {
			t.Fatalf("%s: %v\n%s", action, err, output)
		}
	}

	must("install")
	first := snapshot(t, root)
	for path, mode := range map[string]fs.FileMode{
		"bin/sandbox": 0o755, "bin/sandbox-server": 0o755, "bin/sandbox-ingress": 0o755,
		"bin/sandbox-keeper": 0o755, "bin/sandbox-controller": 0o755,
		"share/man/man1/sandbox.1":                     0o644,
		"share/man/man1/sandbox-run.1":                 0o644,
		"share/bash-completion/completions/sandbox":    0o644,
		"share/zsh/site-functions/_sandbox":            0o644,
		"share/fish/vendor_completions.d/sandbox.fish": 0o644,
		"lib/systemd/system/sandbox-server.service":    0o644,
		"share/sandbox/installed":                      0o644,
		"share/sandbox/install.sh":                     0o755,
		"share/sandbox/release":                        0o644,
		"share/sandbox/images/first.tar":               0o644,
		"share/sandbox/compose/compose.yaml":           0o644,
		"share/sandbox/helm/sandbox/Chart.yaml":        0o644,
		"share/doc/sandbox/LICENSE":                    0o644,
	} {
		info, err := os.Stat(filepath.Join(prefix, path))
		if err != nil {
			t.Error(err)
		} else if info.Mode() != mode || info.Size() == 0 {
			t.Errorf("%s has mode %v and %d bytes, want %v and some", path, info.Mode(), info.Size(),
				mode)
		}
	}
	if got, want := read(t, filepath.Join(prefix, "bin/sandbox")), read(t, tool); got != want {
		t.Error("bin/sandbox is not the program of PROGRAMS")
	}
	installed := read(t, filepath.Join(prefix, "lib", "systemd/system/sandbox-server.service"))
	if want := strings.ReplaceAll(read(t, unit), "/usr/local/", "/opt/sandbox/"); installed != want {
		t.Errorf("the installed unit is\n%s\nwant\n%s", installed, want)
	}

	// An older version had another program.
	write(t, filepath.Join(prefix, "bin/sandbox-old"), "old")
	list := filepath.Join(prefix, "share/sandbox/installed")
	write(t, list, read(t, list)+"/opt/sandbox/bin/sandbox-old\n")
	must("install")
	equal(t, "the second install", snapshot(t, root), first)

	must("uninstall")
	equal(t, "the uninstall", snapshot(t, root), before)
	if output, err := install("uninstall"); err == nil || !strings.Contains(output, list) {
		t.Errorf("a second uninstall: %v, %q; want an error that names %s", err, output, list)
	}
}

// TestInstallWithBusyBox: the archive of a release needs no tools but those of BusyBox.
func TestInstallWithBusyBox(t *testing.T) {
	t.Parallel()
	const busybox = "/bin/busybox"
	tools, built, programs, root := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	applets, err := wait.Command(t, busybox, "--list").Output()
	if err == nil {
		err = program.Build(t.Context(), built, "sandbox.internal/clients/cmd/sandbox")
	}
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.FieldsSeq(string(applets)) {
		if err := os.Symlink(busybox, filepath.Join(tools, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"sandbox", "sandbox-server", "sandbox-keeper", "sandbox-ingress", "sandbox-controller"} {
		write(t, filepath.Join(programs, name), name)
	}
	release := filepath.Join(t.TempDir(), "release")
	makeTree(t, programs, filepath.Join(built, "sandbox"), "v1.0.0", release)
	write(t, filepath.Join(root, "usr/local/bin/other"), "other")
	before := snapshot(t, root)
	run := func(args ...string) {
		t.Helper()
		command := wait.Command(t, filepath.Join(tools, "sh"), append([]string{filepath.Join(release, "install.sh"), "--yes", "--destdir", root}, args...)...)
		command.Env = []string{"PATH=" + tools}
		if output, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", args, err, output)
		}
	}
	run()
	first := snapshot(t, root)
	if len(first) < len(before)+80 {
		t.Errorf("%d files and directories are installed", len(first)-len(before))
	}
	run()
	equal(t, "the second install", snapshot(t, root), first)
	run("--uninstall")
	equal(t, "the uninstall", snapshot(t, root), before)
}

// TestInstallRefusesRelativePaths: they would be below the repository.
func TestInstallRefusesRelativePaths(t *testing.T) {
	for _, variable := range []string{"PREFIX", "DESTDIR"} {
		command := exec.CommandContext(t.Context(), script, "uninstall")
		command.Env = append(os.Environ(), "PREFIX=", "DESTDIR=", variable+"=some/where")
		output, err := command.CombinedOutput()
		if want := variable + " must be an absolute path"; err == nil ||
			!strings.Contains(string(output), want) {
			t.Errorf("%v, %q; want an error with %q", err, output, want)
		}
	}
}

// snapshot maps each path below the directory to its mode and, for a file, the hash of its content.
func snapshot(t *testing.T, directory string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		found[path] = info.Mode().String()
		if info.Mode().IsRegular() {
			found[path] += fmt.Sprintf(" %x", sha256.Sum256([]byte(read(t, path))))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func equal(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	all := maps.Clone(got)
	maps.Copy(all, want)
	for _, path := range slices.Sorted(maps.Keys(all)) {
		if got[path] != want[path] {
			t.Errorf("after %s %s is %q, want %q", what, path, got[path], want[path])
		}
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

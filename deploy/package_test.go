package deploy_test

import (
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"sandbox.internal/test/program"
	"sandbox.internal/test/wait"
)

// TestPackageOnABareMachine installs the Debian package of a release with dpkg on such a machine,
// replaces it by a newer one while a sandbox runs, removes and purges it: the files are then those
// of before, but for dpkg's own.
func TestPackageOnABareMachine(t *testing.T) {
	t.Parallel()
	root := bareMachine(t)
	release := filepath.Join(t.TempDir(), "release")
	releaseDirectory(t, release)
	for _, version := range []string{"v1.0.0", "v1.1.0"} {
		makePackages(t, release, version, filepath.Join(root, "srv"), "deb")
	}
	name := func(version string) string { return "/srv/sandbox_" + version + "_" + runtime.GOARCH + ".deb" }
	before := snapshot(t, root)
	data := "package" + strconv.Itoa(os.Getpid())
	removeGroups(t, "/var/lib/sandbox-server/"+data+"/local")
	enter(t, root, "package.sh", name("1.0.0"), name("1.1.0"), data)
	after := snapshot(t, root)
	for _, files := range []map[string]string{before, after} {
		maps.DeleteFunc(files, func(path, _ string) bool {
			return strings.HasPrefix(path, root+"/var/lib/dpkg/") || strings.HasPrefix(path, root+"/var/log/") ||
				strings.HasPrefix(path, root+"/var/cache/debconf/")
		})
	}
	equal(t, "the purge", after, before)
}

// TestReleasesAreReproducible: the same programs make the same directory of a release, with the
// same images, and the same packages.
func TestReleasesAreReproducible(t *testing.T) {
	t.Parallel()
	programs, made := t.TempDir(), t.TempDir()
	tool := filepath.Join(made, "sandbox")
	if err := program.Build(t.Context(), made, "sandbox.internal/clients/cmd/sandbox"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sandbox", "sandbox-server", "sandbox-keeper", "sandbox-ingress", "sandbox-controller",
		"execd", "execd-init", "egress", "egress-init", "task-executor", "task-executor-init"} {
		write(t, filepath.Join(programs, name), name)
		if err := os.Chmod(filepath.Join(programs, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var trees, packages [2]map[string]string
	for i := range trees {
		directory := t.TempDir()
		release, out := filepath.Join(directory, "release"), filepath.Join(directory, "out")
		makeTree(t, programs, tool, "v1.2.3-rc.1", release)
		if err := os.Mkdir(out, 0o755); err != nil {
			t.Fatal(err)
		}
		makePackages(t, release, "v1.2.3-rc.1", out, "deb", "rpm")
		trees[i], packages[i] = relative(snapshot(t, release), directory), relative(snapshot(t, out), directory)
	}
	equal(t, "the second time", trees[1], trees[0])
	equal(t, "the second time", packages[1], packages[0])
	for _, image := range []string{"execd", "egress", "task-executor", "first"} {
		if trees[0]["/release/share/sandbox/images/"+image+".tar"] == "" {
			t.Errorf("the release has no image %s", image)
		}
	}
	if len(packages[0]) != 3 { // with their directory
		t.Errorf("packages %v, want one for Debian and one for RPM", packages[0])
	}
}

// relative returns what snapshot has found with paths relative to the directory.
func relative(found map[string]string, directory string) map[string]string {
	moved := map[string]string{}
	for path, what := range found {
		moved[strings.TrimPrefix(path, directory)] = what
	}
	return moved
}

// makePackages makes packages of the directory of a release.
func makePackages(t *testing.T, release, version, directory string, formats ...string) {
	t.Helper()
	const script = "../scripts/package.sh"
	for _, input := range []string{script, "release.env", "package/nfpm.yaml", "package/sandbox.toml", "package/postinst.sh", "package/prerm.sh", "package/postrm.sh"} {
		_ = read(t, input) // makes it an input of this test
	}
	command := wait.Command(t, script, append([]string{release, version, runtime.GOARCH, "1767225600", directory}, formats...)...)
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
}

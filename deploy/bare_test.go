package deploy_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"sandbox.internal/test/e2e/conformance/localengine"
	"sandbox.internal/test/program"
	"sandbox.internal/test/wait"
)

const bare = "testdata/bare"

// TestArchiveOnABareMachine installs the archive of a release on a Debian that has neither Go nor
// Git nor a network, runs a first sandbox, replaces the release by a newer one and back while a
// sandbox runs, and removes it: the files are then those of before.
func TestArchiveOnABareMachine(t *testing.T) {
	t.Parallel()
	root := bareMachine(t)
	older, newer := filepath.Join(root, "srv/older"), filepath.Join(root, "srv/newer")
	releaseDirectory(t, older)
	if output, err := wait.Command(t, "cp", "-al", older, newer).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	write(t, filepath.Join(older, "share/sandbox/old"), "old")
	for _, file := range []string{"release", "share/sandbox/release"} {
		if err := os.Remove(filepath.Join(newer, file)); err != nil { // it is the older one's, too
			t.Fatal(err)
		}
		write(t, filepath.Join(newer, file), "version=v1.1.0\narchitecture="+runtime.GOARCH+"\n")
	}
	before := snapshot(t, root)
	data := "archive" + strconv.Itoa(os.Getpid())
	removeGroups(t, "/var/lib/sandbox-server/"+data+"/local")
	enter(t, root, "archive.sh", "/srv/older", "/srv/newer", data)
	equal(t, "the uninstall", snapshot(t, root), before)
}

// bareMachine returns the directory of a root file system: Debian with crun, nftables, iproute2 and
// python3-venv.
func bareMachine(t *testing.T) string {
	t.Helper()
	archive := filepath.Join(localengine.Archives(), "host.tar")
	if _, err := os.Stat(archive); err != nil {
		t.Fatalf("%v: scripts/images.sh --archives host makes it", err)
	}
	root := filepath.Join(t.TempDir(), "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	unpack := wait.Command(t, "sh", "-c", `tar -xOf "$0" ./layer.tar | tar -x --numeric-owner -C "$1"`, archive, root)
	if output, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	for _, tool := range []string{"go", "git", "make", "sandbox"} {
		if _, err := os.Stat(filepath.Join(root, "usr/bin", tool)); err == nil {
			t.Fatalf("the machine has %s", tool)
		}
	}
	return root
}

// released is what releaseDirectory has made once for all tests. TestMain removes it.
var released struct {
	once      sync.Once
	directory string
}

func TestMain(m *testing.M) {
	code := m.Run()
	if released.directory != "" {
		_ = os.RemoveAll(released.directory)
	}
	os.Exit(code)
}

// releaseDirectory makes what the archive of the release v1.0.0 has, of the programs in bin/, in a
// directory of the test's own. Those of a cluster are left out, which takes a third of the time.
func releaseDirectory(t *testing.T, directory string) {
	t.Helper()
	released.once.Do(func() {
		made, err := os.MkdirTemp("", "deploy-test-")
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if t.Failed() {
				_ = os.RemoveAll(made)
			}
		}()
		makeRelease(t, made)
		released.directory = made
	})
	if released.directory == "" {
		t.Fatal("the directory of a release was not made: the first test that needs it says why")
	}
	if output, err := wait.Command(t, "cp", "-a", released.directory, directory).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	if err := os.Chmod(directory, 0o755); err != nil { //nolint:gosec // as that of an archive
		t.Fatal(err)
	}
}

func makeRelease(t *testing.T, directory string) {
	t.Helper()
	bin, err := filepath.Abs("../bin")
	if err == nil {
		err = program.UseImages("sandbox/execd:dev sandbox/egress:dev sandbox/server:dev")
	}
	if err != nil {
		t.Fatal(err)
	}
	programs := t.TempDir()
	for _, name := range []string{"sandbox", "sandbox-server", "sandbox-keeper", "execd", "execd-init", "egress", "egress-init"} {
		path := filepath.Join(bin, name)
		if _, err := os.Stat(path); err != nil { // an input of this test
			t.Fatalf("%v: make build makes it", err)
		}
		if err := os.Symlink(path, filepath.Join(programs, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"sandbox-ingress", "sandbox-controller"} {
		write(t, filepath.Join(programs, name), name)
	}
	makeTree(t, programs, filepath.Join(bin, "sandbox"), "v1.0.0", directory)
}

// makeTree makes the directory of a release from programs.
func makeTree(t *testing.T, programs, tool, version, directory string) {
	t.Helper()
	const script = "../scripts/tree.sh"
	for _, input := range []string{script, "install.sh", "../scripts/images.sh", unit} {
		_ = read(t, input) // makes it an input of this test
	}
	for _, directory := range []string{"compose", "helm/sandbox", "helm/sandbox/templates", "helm/sandbox/crds"} {
		if _, err := os.ReadDir(directory); err != nil { // so does this
			t.Fatal(err)
		}
	}
	if output, err := wait.Command(t, script, programs, tool, version, runtime.GOARCH, directory).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
}

// enter runs a script of testdata/bare on the machine in the directory.
func enter(t *testing.T, root, script string, args ...string) {
	t.Helper()
	enterWith(t, root, nil, script, args...)
}

// enterWith is enter on a machine that shows directories of the host, each "FOLDER
// FOLDER-OF-THE-MACHINE", which it cannot change.
func enterWith(t *testing.T, root string, directories []string, script string, args ...string) {
	t.Helper()
	inside := filepath.Join(bare, "enter.sh")
	_ = read(t, inside) // makes it an input of this test
	command := wait.Command(t, "unshare", append([]string{"--mount", "--pid", "--fork", "--kill-child", "--net", "--ipc", "--uts",
		inside, root}, args...)...)
	command.Env = append(os.Environ(), "FOLDERS="+strings.Join(directories, "\n"))
	command.Stdin = strings.NewReader(read(t, filepath.Join(bare, "functions.sh")) + read(t, filepath.Join(bare, script)))
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	err := command.Run()
	t.Logf("%s:\n%s", script, &output)
	if err != nil {
		t.Fatal(err)
	}
}

// removeGroups removes the control groups of the local engine with that data directory when the
// test has ended: a script that fails leaves them, without processes. Groups of other services come
// and go meanwhile.
func removeGroups(t *testing.T, data string) {
	t.Cleanup(func() {
		name := fmt.Sprintf("sandbox-%x", sha256.Sum256([]byte(data)))[:len("sandbox-")+8]
		var left []string
		err := filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV): // the group is gone
				return nil
			case err != nil:
				return err
			case entry.IsDir() && strings.Contains(path, "/"+name):
				left = append(left, path)
			}
			return nil
		})
		for _, group := range slices.Backward(left) {
			err = errors.Join(err, os.Remove(group))
		}
		if err != nil || len(left) > 0 {
			t.Errorf("control groups are left: %v\n%s", err, strings.Join(left, "\n"))
		}
	})
}

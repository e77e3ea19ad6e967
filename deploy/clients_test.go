package deploy_test

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha1" //nolint:gosec // what npm's protocol has
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// registry is where the scripts of testdata/bare have the registry.
const registry = "http://127.0.0.1:8100"

// TestClientsOnABareMachine installs, on machines without a network, the archive of a release and
// then the package of a client with pip, npm and the go command from a registry of the machine,
// runs a first sandbox with it, replaces the package by a newer one while a sandbox runs, and
// removes both: the files of the machine are then those of before.
func TestClientsOnABareMachine(t *testing.T) {
	t.Parallel()
	release := filepath.Join(t.TempDir(), "release")
	releaseDirectory(t, release)
	for installer, fill := range map[string]func(t *testing.T, root string) (directories []string){
		"pip": fillPython, "npm": fillNPM, "go": fillGo,
	} {
		t.Run(installer, func(t *testing.T) {
			t.Parallel()
			root := bareMachine(t)
			directories := fill(t, root)
			directories = append(directories, release+" /srv/release")
			for _, directory := range directories {
				_, at, _ := strings.Cut(directory, " ")
				if err := os.MkdirAll(filepath.Join(root, at), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			before := snapshot(t, root)
			data := installer + strconv.Itoa(os.Getpid())
			removeGroups(t, "/var/lib/sandbox-server/"+data+"/local")
			enterWith(t, root, directories, "clients.sh", "/srv/release", data, installer)
			equal(t, "the uninstall", snapshot(t, root), before)
		})
	}
}

// TestArchiveWithSystemd: install.sh --start has systemd start the service, with the unit of the
// prefix. systemd itself does not run: a systemctl stands in for it, which writes down what it is
// asked for.
func TestArchiveWithSystemd(t *testing.T) {
	t.Parallel()
	root := bareMachine(t)
	releaseDirectory(t, filepath.Join(root, "srv/release"))
	before := snapshot(t, root)
	data := "systemd" + strconv.Itoa(os.Getpid())
	removeGroups(t, "/var/lib/sandbox-server/"+data+"/local")
	enter(t, root, "systemd.sh", "/srv/release", data)
	equal(t, "the uninstall", snapshot(t, root), before)
}

// clientPackages makes the package of a client in two versions and returns their directory.
func clientPackages(t *testing.T, client string) string {
	t.Helper()
	for _, input := range []string{"clients.sh", "python.sh", "pythonversion.sh", "node.sh"} {
		_ = read(t, filepath.Join("../scripts", input)) // makes it an input of this test
	}
	inputs := map[string][]string{"go": {"../clients/go", "../wire", "release/modules"}}[client]
	if inputs == nil {
		inputs = []string{"../clients/" + client}
	}
	for _, directory := range inputs {
		err := filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.IsDir() {
				return err
			}
			_, err = os.ReadDir(path) // so does this, with the times of the files
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	directory := t.TempDir()
	for _, version := range []string{"v1.0.0", "v1.1.0"} {
		command := wait.Command(t, "../scripts/clients.sh", version, "1767225600", directory, client)
		if output, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
	}
	return directory
}

// fillPython makes an index as PEP 503 has it.
func fillPython(t *testing.T, root string) []string {
	packages := clientPackages(t, "python")
	var page strings.Builder
	for _, version := range []string{"1.0.0", "1.1.0"} {
		name := "sandboxes-" + version + "-py3-none-any.whl"
		wheel := read(t, filepath.Join(packages, name))
		write(t, filepath.Join(root, "srv/registry/simple/sandboxes", name), wheel)
		fmt.Fprintf(&page, "<a href=%q>%s</a>\n", name, name)
	}
	write(t, filepath.Join(root, "srv/registry/simple/sandboxes/index.html"), "<!DOCTYPE html>\n"+page.String())
	return nil
}

// fillNPM makes a registry of npm with the client and the one package that it depends on, and has
// Node.js and npm for the machine.
func fillNPM(t *testing.T, root string) []string {
	at := filepath.Join(root, "srv/registry")
	packages := clientPackages(t, "typescript")
	versions := map[string]string{}
	for _, version := range []string{"1.0.0", "1.1.0"} {
		versions[version] = filepath.Join(packages, "sandbox.internal-sdk-"+version+".tgz")
	}
	publish(t, at, "@sandbox.internal/sdk", versions)
	undici := filepath.Join(conformance.NodePackages(t, "clients/typescript"), "undici")
	packed := filepath.Join(t.TempDir(), "undici.tgz")
	pack := wait.Command(t, "tar", "-czf", packed, "-C", filepath.Dir(undici), "--transform", "s|^undici|package|", "undici")
	if output, err := pack.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	var manifest struct{ Version string }
	if err := json.Unmarshal([]byte(read(t, filepath.Join(undici, "package.json"))), &manifest); err != nil {
		t.Fatal(err)
	}
	publish(t, at, "undici", map[string]string{manifest.Version: packed})
	return []string{conformance.NodePackages(t, "deploy/testdata/node") + " /srv/node"}
}

// publish puts the archives of a package, by version, into the registry in the directory.
func publish(t *testing.T, directory, name string, archives map[string]string) {
	t.Helper()
	versions, latest := map[string]any{}, ""
	for version, archive := range archives {
		content := read(t, archive)
		path := "tarballs/" + strings.ReplaceAll(name, "/", "-") + "-" + version + ".tgz"
		write(t, filepath.Join(directory, path), content)
		var manifest map[string]any
		if err := json.Unmarshal(packedManifest(t, archive), &manifest); err != nil {
			t.Fatal(err)
		}
		long, short := sha512.Sum512([]byte(content)), sha1.Sum([]byte(content)) //nolint:gosec // what npm's protocol has
		manifest["dist"] = map[string]string{
			"tarball":   registry + "/" + path,
			"integrity": "sha512-" + base64.StdEncoding.EncodeToString(long[:]),
			"shasum":    hex.EncodeToString(short[:]),
		}
		versions[version] = manifest
		latest = max(latest, version)
	}
	document, err := json.Marshal(map[string]any{"name": name, "dist-tags": map[string]string{"latest": latest}, "versions": versions})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(directory, name), string(document))
}

// packedManifest returns the package.json of a package's archive.
func packedManifest(t *testing.T, archive string) []byte {
	t.Helper()
	file, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	unpacked, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	for files := tar.NewReader(unpacked); ; {
		header, err := files.Next()
		if err != nil {
			t.Fatalf("%s has no package.json: %v", archive, err)
		}
		if header.Name != "package/package.json" {
			continue
		}
		content, err := io.ReadAll(files)
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
}

// fillGo unpacks the archives of the modules, has the modules of others that they require as the
// public proxy serves them, and the toolchain for the machine, with what it has compiled of the
// standard library: that takes a minute, and says nothing of the client.
func fillGo(t *testing.T, root string) []string {
	packages := clientPackages(t, "go")
	for _, version := range []string{"1.0.0", "1.1.0"} {
		at := filepath.Join(root, "srv/registry/go")
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		unpack := wait.Command(t, "tar", "-xf", filepath.Join(packages, "sandbox-go_"+version+".tar.gz"), "-C", at, "--strip-components", "1")
		if output, err := unpack.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
	}
	standard := wait.Command(t, "go", "list", "-export", "sandbox.internal/clients/go") // with the flags that a machine without a C compiler has
	standard.Dir = ".."
	standard.Env = append(os.Environ(), "GOFLAGS=", "CGO_ENABLED=0")
	if output, err := standard.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	output, err := wait.Command(t, "go", "env", "GOROOT", "GOMODCACHE", "GOCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	at := strings.Split(strings.TrimSpace(string(output)), "\n")
	return []string{at[0] + " /srv/go", filepath.Join(at[1], "cache/download") + " /srv/registry/modules", at[2] + " /srv/compiled"}
}

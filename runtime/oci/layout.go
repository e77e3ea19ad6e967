package oci

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sandbox.internal/internal/flock"
	"sandbox.internal/runtime/oci/keeper"
)

const (
	folderMode = 0o700
	// throughMode is that of folders with what containers' users have to reach by its path.
	throughMode = 0o711
)

// runFolders has the run folders of services, unless they have other ones.
const runFolders = "/run/sandbox-local"

// claims has a link for each service on the host that gives containers user namespaces, to its data folder; its name is the first of the ids
// that the service has.
const claims = runFolders + "/users"

// layout is where things lie.
type layout struct {
	data string // what outlives a reboot
	run  string // what does not
}

func newLayout(options Options) layout {
	return layout{data: options.Folder, run: options.RunFolder}
}

func (l layout) images() string { return filepath.Join(l.data, "images") }

// targets has layers that are no image's; see targets.go. It is where those are, because a container reaches all of them by one mount.
func (l layout) targets() string { return filepath.Join(l.images(), "targets") }

func (l layout) volumes() string    { return filepath.Join(l.data, "volumes") }
func (l layout) folders() string    { return filepath.Join(l.data, "folders") }
func (l layout) containers() string { return filepath.Join(l.data, "containers") }
func (l layout) trash() string      { return filepath.Join(l.data, "trash") }

// runtime is the root folder of the OCI runtime's states; each runtime has one of its own, because their states have different forms.
func (l layout) runtime(name string) string {
	return filepath.Join(l.runRuntimes(), filepath.Base(name))
}

// mounts is where the sources of mounts are made visible to the runtime; see mounts.go.
func (l layout) mounts(id string) string { return filepath.Join(l.runMounts(), id) }

// root is where the root of a container with a user namespace is mounted, in the keeper's mount namespace: its user gets there, which it does
// not to the data folder.
func (l layout) root(id string) string { return filepath.Join(l.runRoots(), id) }

func (l layout) runRoots() string    { return filepath.Join(l.run, "roots") }
func (l layout) runMounts() string   { return filepath.Join(l.run, "mounts") }
func (l layout) runRuntimes() string { return filepath.Join(l.run, "runtime") }

// upperFolder and workFolder are the two folders of an overlay, etcFolder that of the container's own files of /etc.
const (
	upperFolder = "upper"
	workFolder  = "work"
	etcFolder   = "etc"
)

// containerFolder is the absolute path of the folder of one container.
type containerFolder string

func (l layout) container(id string) containerFolder {
	return containerFolder(filepath.Join(l.containers(), id))
}

func (c containerFolder) record() string { return filepath.Join(string(c), "container.json") }
func (c containerFolder) rootfs() string { return filepath.Join(string(c), "rootfs") }
func (c containerFolder) disk() string   { return filepath.Join(string(c), "disk") }
func (c containerFolder) upper() string  { return filepath.Join(c.disk(), upperFolder) }
func (c containerFolder) work() string   { return filepath.Join(c.disk(), workFolder) }

// filesystem is the file with upper, work and etc, where what a container writes is bounded.
func (c containerFolder) filesystem() string { return filepath.Join(c.disk(), "filesystem") }
func (c containerFolder) exit() string       { return filepath.Join(c.disk(), "exit") }
func (c containerFolder) etc() string        { return filepath.Join(c.disk(), etcFolder) }
func (c containerFolder) output() string     { return filepath.Join(string(c), "output") }
func (c containerFolder) log() string        { return filepath.Join(string(c), "log") }
func (c containerFolder) oldLog() string     { return c.log() + ".1" }
func (c containerFolder) end() string        { return filepath.Join(string(c), "end.json") }
func (c containerFolder) pidFile() string    { return filepath.Join(string(c), "pid") }

// make makes every folder that is missing.
func (l layout) make() error {
	if err := makePrivate(l.data, folderMode); err != nil {
		return err
	}
	for _, path := range []string{l.volumes(), l.folders(), l.containers(), l.trash()} {
		if err := os.MkdirAll(path, folderMode); err != nil {
			return err
		}
	}
	shared := []string{l.run, l.runMounts(), l.runRoots()}
	if filepath.Dir(l.run) == runFolders {
		shared = append([]string{runFolders}, shared...)
	}
	for _, path := range shared {
		if err := makePrivate(path, throughMode); err != nil {
			return err
		}
	}
	return os.MkdirAll(l.runRuntimes(), folderMode)
}

// makePrivate makes a folder, or makes sure that no one else can read or change the one that there is: layers have programs with set-user-id.
func makePrivate(path string, mode os.FileMode) error {
	if err := os.MkdirAll(path, mode); err != nil {
		return err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() || info.Mode().Perm()&^mode != 0 {
		return fmt.Errorf("%s must be a folder with mode %#o, and is %s", path, mode, info.Mode())
	}
	return os.Chmod(path, mode) // whatever the umask is, and what an earlier release has made
}

// removeRun removes what does not outlive a reboot, of an Engine without containers and keeper.
func (l layout) removeRun() error {
	var errs []error
	for _, path := range []string{l.runMounts(), l.runRoots(), l.runRuntimes()} {
		errs = append(errs, os.RemoveAll(path))
	}
	return errors.Join(append(errs, keeper.RemoveFiles(l.run), os.Remove(l.run))...)
}

// folderKey is what names that one data folder's Engine uses on the host are made unique with.
func folderKey(data string) string {
	sum := sha256.Sum256([]byte(data))
	return hex.EncodeToString(sum[:4])
}

// cgroupName is the name of the control group that the containers of a data folder are in.
func cgroupName(data string) string { return "sandbox-" + folderKey(data) }

// lockFolder keeps other Engines from the folder for as long as the file is open.
func lockFolder(folder string) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(folder, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock.Exclusive(file); err != nil {
		_ = file.Close()
		if errors.Is(err, flock.ErrHeld) {
			return nil, fmt.Errorf("folder %s is in use by another service", folder)
		}
		return nil, fmt.Errorf("lock %s: %w", folder, err)
	}
	return file, nil
}

// bootID is different after every start of the kernel.
func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}

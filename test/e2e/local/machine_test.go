package local_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/oci"
	"sandbox.internal/test/e2e/lives"
)

// Names of the images that scripts/images.sh --archives makes.
const (
	execdImage   = "sandbox/execd:dev"
	egressImage  = "sandbox/egress:dev"
	busyboxImage = "sandbox/busybox:dev"
	baseImage    = "sandbox/base:dev"
)

// archives returns the folder of these files.
func archives() string {
	cache := os.Getenv("SANDBOX_CACHE")
	if cache == "" {
		base := os.Getenv("XDG_CACHE_HOME")
		if base == "" {
			base = filepath.Join(os.Getenv("HOME"), ".cache")
		}
		cache = filepath.Join(base, "sandbox")
	}
	return filepath.Join(cache, "archives")
}

// images is a store that has all of them unpacked.
var images template

// template is made once; each engine under test gets a copy whose files are links to its files.
type template struct {
	once   sync.Once
	folder string
	err    error
	keeper sync.Once
}

func (i *template) make(t *testing.T) string {
	t.Helper()
	i.once.Do(func() { i.err = i.unpack(t) })
	if i.err != nil {
		t.Fatalf("unpack the archives of scripts/images.sh --archives: %v", i.err)
	}
	return filepath.Join(i.folder, "images")
}

func (i *template) unpack(t *testing.T) error {
	var err error
	if i.folder, err = os.MkdirTemp("", "sandbox-local-"); err != nil {
		return err
	}
	engine, err := oci.Open(t.Context(), oci.Options{
		Folder: i.folder, Keeper: keeper(t), Bridge: bridgeName(), Logger: zerolog.Nop(),
	})
	if err != nil {
		return err
	}
	for _, name := range []string{"execd", "egress", "busybox", "base"} {
		err = errors.Join(err, engine.LoadArchive(t.Context(), filepath.Join(archives(), name+".tar")))
	}
	return errors.Join(err, engine.Close())
}

func (i *template) remove() {
	if i.folder != "" {
		_ = os.RemoveAll(i.folder)
	}
}

// keeper returns the path of the keeper's program, in a folder of its own: no sandbox may mount that.
func keeper(t *testing.T) string {
	t.Helper()
	folder := filepath.Join(images.folder, "programs")
	path := filepath.Join(folder, "sandbox-keeper")
	images.keeper.Do(func() {
		if err := errors.Join(os.MkdirAll(folder, 0o700), os.Link(lives.Build(t, "sandbox.internal/server/cmd/sandbox-keeper"), path)); err != nil {
			t.Fatal(err)
		}
	})
	return path
}

// networks counts the bridges that were named.
var networks atomic.Int32

// machine is where a service under test keeps what is its engine's.
type machine struct{ folder, bridge string }

// machines are those of the services, by their instances.
type machines struct {
	mu      sync.Mutex
	byID    map[string]machine
	runtime string // local.oci_runtime
	local   string // more lines of the section [local]
}

func newMachines() *machines { return &machines{byID: map[string]machine{}, runtime: *usual} }

// settings returns the sections of a configuration for a service with an engine of its own.
func (m *machines) settings(t *testing.T, instance, more string) string {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "engine")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if output, err := exec.CommandContext(t.Context(), "cp", "-al", images.make(t), folder).CombinedOutput(); err != nil {
		t.Fatalf("copy the images: %v %s", err, output)
	}
	bridge := bridgeName()
	made := machine{folder, bridge}
	m.mu.Lock()
	m.byID[instance] = made
	m.mu.Unlock()
	t.Cleanup(func() { made.checkEnded(t) }) // the service, whose end is registered later, has ended by then
	return fmt.Sprintf("[runtime]\ntype = \"local\"\nexecd_image = %q\n%s\n[local]\noci_runtime = %q\ndata_dir = %q\nkeeper = %q\nbridge = %q\n%s",
		execdImage, more, m.runtime, folder, keeper(t), bridge, m.local)
}

func (m *machines) of(instance string) machine {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.byID[instance]
}

// record is what the tests read of the record of a container.
type record struct {
	ID   string
	Spec struct {
		Name   string
		Labels map[string]string
	}
	Run *struct {
		Process struct{ PID int }
		Network *struct {
			Address string
			Ports   map[int]int
		}
	}
}

// records returns those of the containers of a sandbox, or of all if id is empty.
func (m machine) records(t *testing.T, id string) []record {
	files, err := filepath.Glob(filepath.Join(m.folder, "containers", "*", "container.json"))
	if err != nil {
		t.Error(err)
	}
	var found []record
	for _, file := range files {
		content, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		var r record
		if err := errors.Join(err, json.Unmarshal(content, &r)); err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if id == "" || r.Spec.Labels["sandbox.internal/id"] == id {
			found = append(found, r)
		}
	}
	return found
}

// bridgePrefix begins the names of this run's bridges and veth pairs.
func bridgePrefix() string { return fmt.Sprintf("t%d-", os.Getpid()%100000) }

// bridgeName is the name of a bridge that no other engine of this run has.
func bridgeName() string { return fmt.Sprintf("%s%d", bridgePrefix(), networks.Add(1)) }

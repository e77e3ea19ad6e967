// Package localengine is the backend of tests on the service's own engine: each service has one,
// whose images are those of scripts/images.sh --archives.
package localengine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/oci"
	"sandbox.internal/test/e2e/conformance"
)

// Names of the images that scripts/images.sh --archives makes.
const (
	ExecdImage   = "sandbox/execd:dev"
	EgressImage  = "sandbox/egress:dev"
	BusyboxImage = "sandbox/busybox:dev"
	BaseImage    = "sandbox/base:dev"
	PythonImage  = "sandbox/python:dev" // where Machines.Python says so
)

// Archives returns the directory of these files.
func Archives() string {
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

// Stores that have these unpacked.
var (
	images     = template{names: []string{"execd", "egress", "busybox", "base"}}
	withPython = template{names: append([]string{"python"}, images.names...)}
)

// template is made once; each engine under test gets a copy whose files are links to its files.
type template struct {
	names     []string
	once      sync.Once
	directory string
	err       error
}

// programs has the keeper's program.
var programs struct {
	once      sync.Once
	directory string
}

func (i *template) make(t *testing.T) string {
	t.Helper()
	i.once.Do(func() { i.err = i.unpack(t) })
	if i.err != nil {
		t.Fatalf("unpack the archives of scripts/images.sh --archives: %v", i.err)
	}
	return filepath.Join(i.directory, "images")
}

func (i *template) unpack(t *testing.T) error {
	var err error
	if i.directory, err = os.MkdirTemp("", "sandbox-local-"); err != nil {
		return err
	}
	engine, err := oci.Open(t.Context(), oci.Options{
		Directory: i.directory, Keeper: keeper(t), Bridge: bridgeName(), Logger: zerolog.Nop(),
	})
	if err != nil {
		return err
	}
	for _, name := range i.names {
		err = errors.Join(err, engine.LoadArchive(t.Context(), filepath.Join(Archives(), name+".tar")))
	}
	return errors.Join(err, engine.Close())
}

// Remove removes what this package has made for all services, at the end of a package's tests.
func Remove() {
	for _, directory := range []string{images.directory, withPython.directory, programs.directory} {
		if directory != "" {
			_ = os.RemoveAll(directory)
		}
	}
}

// keeper returns the path of the keeper's program, in a directory of its own: no sandbox may mount
// that.
func keeper(t *testing.T) string {
	t.Helper()
	programs.once.Do(func() {
		var err error
		if programs.directory, err = os.MkdirTemp("", "sandbox-local-"); err == nil {
			err = os.Link(conformance.Build(t, "sandbox.internal/server/cmd/sandbox-keeper"), filepath.Join(programs.directory, "sandbox-keeper"))
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	return filepath.Join(programs.directory, "sandbox-keeper")
}

// networks counts the bridges that were named.
var networks atomic.Int32

// Machine is where a service under test keeps what is its engine's.
type Machine struct {
	Directory string // local.data_dir
	Bridge    string // local.bridge
}

// Machines are those of the services, by their instances.
type Machines struct {
	Runtime string // local.oci_runtime
	Local   string // more lines of the section [local]
	Python  bool   // the engine has PythonImage, too, which takes longer to copy

	mu   sync.Mutex
	byID map[string]Machine
}

// New returns machines whose sandboxes have an OCI runtime: crun, runc or runsc.
func New(runtime string) *Machines { return &Machines{Runtime: runtime, byID: map[string]Machine{}} }

// Settings returns the sections of a configuration for a service with an engine of its own.
func (m *Machines) Settings(t *testing.T, instance, more string) string {
	t.Helper()
	directory := filepath.Join(t.TempDir(), "engine")
	if err := os.Mkdir(directory, 0o700); err != nil {
		t.Fatal(err)
	}
	store := &images
	if m.Python {
		store = &withPython
	}
	if output, err := exec.CommandContext(t.Context(), "cp", "-al", store.make(t), directory).CombinedOutput(); err != nil {
		t.Fatalf("copy the images: %v %s", err, output)
	}
	bridge := bridgeName()
	made := Machine{directory, bridge}
	m.mu.Lock()
	m.byID[instance] = made
	m.mu.Unlock()
	t.Cleanup(func() { made.checkEnded(t) }) // the service, whose end is registered later, has ended by then
	return fmt.Sprintf("[runtime]\ntype = \"local\"\nexecd_image = %q\n%s\n[local]\noci_runtime = %q\ndata_dir = %q\nkeeper = %q\nbridge = %q\n%s",
		ExecdImage, more, m.Runtime, directory, keeper(t), bridge, m.Local)
}

// Of returns the machine of the service with this instance.
func (m *Machines) Of(instance string) Machine {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.byID[instance]
}

// Record is what the tests read of the record of a container.
type Record struct {
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

// Records returns those of the containers of a sandbox, or of all if id is empty.
func (m Machine) Records(t *testing.T, id string) []Record {
	files, err := filepath.Glob(filepath.Join(m.Directory, "containers", "*", "container.json"))
	if err != nil {
		t.Error(err)
	}
	var found []Record
	for _, file := range files {
		content, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		var r Record
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

// TestLink matches the names of the bridges and veth pairs that tests make, in whatever process.
var TestLink = regexp.MustCompile(`^t[0-9]+-`)

// linkPrefix begins the names of this process's bridges and veth pairs.
func linkPrefix() string { return fmt.Sprintf("t%d-", os.Getpid()%100000) }

// bridgeName is the name of a bridge that no other engine of this run has.
func bridgeName() string { return fmt.Sprintf("%s%d", linkPrefix(), networks.Add(1)) }

// Backend is the host backend with the service's own engine.
func (m *Machines) Backend() conformance.Backend {
	return conformance.Backend{
		Images: conformance.Images{Busybox: BusyboxImage, Base: BaseImage},
		Settings: func(t *testing.T, instance string, _ conformance.Plan) string {
			return m.Settings(t, instance, "")
		},
		Leftovers: func(t *testing.T, instance, id string) []string {
			var names []string
			for _, r := range m.Of(instance).Records(t, id) {
				names = append(names, "container "+r.Spec.Name)
			}
			return names
		},
		// The engine and its keeper belong to the service, which has ended.
		Clear: func(*testing.T, string) {},
		// A volume that is not there is made when a sandbox first names it.
		Claim: func(t *testing.T, s *conformance.Service) string {
			claim := s.Instance + "-claim"
			t.Cleanup(func() {
				s.DeleteAll(t)
				if err := os.RemoveAll(filepath.Join(m.Of(s.Instance).Directory, "volumes", claim)); err != nil {
					t.Error(err)
				}
			})
			return claim
		},
		OwnKernel:      OwnKernel(m.Runtime),
		Snapshots:      true,
		Compares:       true,
		Suspends:       true,
		Sleeps:         true,
		Hibernates:     true,
		RuntimeHandler: func(*testing.T) string { return m.Runtime },
	}
}

// OwnKernel returns whether containers of an OCI runtime have a kernel of its own.
func OwnKernel(runtime string) bool { return runtime == "runsc" }

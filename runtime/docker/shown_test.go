package docker_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/rs/zerolog"

	"sandbox.internal/runtime/docker"
	"sandbox.internal/runtime/engine"
)

// ownMachine is what an engine of this machine says about it.
func ownMachine(t *testing.T) map[string]any {
	t.Helper()
	read := func(path string) string {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	_, total, _ := strings.Cut(read("/proc/meminfo"), "MemTotal:")
	total, _, _ = strings.Cut(strings.TrimSpace(total), " ")
	kib, err := strconv.ParseInt(total, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]any{
		"NCPU": strings.Count(read("/proc/cpuinfo"), "processor\t"), "MemTotal": kib << 10, "KernelVersion": strings.TrimSpace(read("/proc/sys/kernel/osrelease")),
		"CPUSet": true, "DefaultRuntime": "runc",
		"Runtimes": map[string]any{"runc": map[string]any{"path": "runc"}, "runsc": map[string]any{"path": "/usr/bin/runsc"}, "mine": map[string]any{"path": "/opt/crun"}},
	}
}

// fakeEngine answers creates of containers, and keeps what they ask for.
type fakeEngine struct {
	info   map[string]any
	refuse func(host container.HostConfig) string // the reason, empty for none

	mu      sync.Mutex
	created []container.HostConfig
}

func (f *fakeEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Api-Version", "1.41")
	switch {
	case strings.HasSuffix(r.URL.Path, "/_ping"):
	case strings.HasSuffix(r.URL.Path, "/info"):
		_ = json.NewEncoder(w).Encode(f.info)
	case strings.HasSuffix(r.URL.Path, "/volumes/create"):
		_, _ = io.WriteString(w, `{"Name": "sandbox-execd-limits", "Driver": "local", "Mountpoint": "/volumes/sandbox-execd-limits/_data"}`)
	case strings.HasSuffix(r.URL.Path, "/containers/create"):
		var asked struct{ HostConfig container.HostConfig }
		_ = json.NewDecoder(r.Body).Decode(&asked)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.created = append(f.created, asked.HostConfig)
		if f.refuse != nil {
			if reason := f.refuse(asked.HostConfig); reason != "" {
				w.WriteHeader(http.StatusBadRequest)
				_ = json.NewEncoder(w).Encode(map[string]string{"message": reason})
				return
			}
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, `{"Id": "id-%d"}`, len(f.created))
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// create has an engine with the fake create a container, and returns what was asked for last.
func (f *fakeEngine) create(t *testing.T, e *docker.Engine, name, runtime string) container.HostConfig {
	t.Helper()
	spec := engine.ContainerSpec{Name: name, ImageID: "image", Runtime: runtime, Resources: engine.Resources{NanoCPUs: 1e9, MemoryBytes: 64 << 20}, ShowLimits: true}
	if _, err := e.Create(t.Context(), spec); err != nil {
		t.Errorf("create %s: %v", name, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.created[len(f.created)-1]
}

func openFake(t *testing.T, f *fakeEngine, options docker.Options) *docker.Engine {
	t.Helper()
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	options.Host, options.Logger = "tcp://"+server.Listener.Addr().String(), zerolog.Nop()
	e, err := docker.New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}

func targets(mounts []mount.Mount) string {
	var list []string
	for _, m := range mounts {
		if m.ReadOnly && m.Type == mount.TypeBind && strings.HasPrefix(m.Source, "/volumes/sandbox-execd-limits/_data/") {
			list = append(list, m.Target)
		}
	}
	return strings.Join(list, " ")
}

func TestFilesOfLimitsAreForTheKernelOfTheMachine(t *testing.T) {
	const memory = "/proc/meminfo"
	for name, c := range map[string]struct {
		change  map[string]any
		runtime string
		want    string
	}{
		"this machine":                {nil, "", memory},
		"another name of a runtime":   {nil, "mine", memory},
		"a shim":                      {map[string]any{"Runtimes": map[string]any{"io.containerd.runc.v2": map[string]any{}}, "DefaultRuntime": "io.containerd.runc.v2"}, "", memory},
		"gVisor":                      {nil, "runsc", ""},
		"gVisor by default":           {map[string]any{"DefaultRuntime": "runsc"}, "", ""},
		"a machine of another size":   {map[string]any{"MemTotal": 1 << 30}, "", ""},
		"a machine of another kernel": {map[string]any{"KernelVersion": "5.15.49-linuxkit"}, "", ""},
		"a machine with labels":       {map[string]any{"SecurityOptions": []string{"name=selinux"}}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeEngine{info: ownMachine(t)}
			for key, value := range c.change {
				f.info[key] = value
			}
			got := f.create(t, openFake(t, f, docker.Options{}), "a", c.runtime)
			if found := targets(got.Mounts); !strings.HasSuffix(found, c.want) || found == "" != (c.want == "") {
				t.Errorf("files are mounted at %q, want %q as the last", found, c.want)
			}
		})
	}
}

// TestFilesThatCannotBeHad: a container is created without files where the engine does not have
// these after they were written, and others then at once.
func TestFilesThatCannotBeHad(t *testing.T) {
	f := &fakeEngine{info: ownMachine(t), refuse: func(host container.HostConfig) string {
		if found := targets(host.Mounts); found != "" {
			return "invalid mount config for type \"bind\": bind source path does not exist: /volumes/sandbox-execd-limits/_data/x"
		}
		return ""
	}}
	e := openFake(t, f, docker.Options{})
	if got := f.create(t, e, "a", ""); len(got.Mounts) != 0 {
		t.Errorf("the container has %+v", got.Mounts)
	}
	before := len(f.created)
	if f.create(t, e, "b", ""); len(f.created) != before+1 {
		t.Errorf("the next container took %d requests, want 1", len(f.created)-before)
	}
}

func TestProcessorsOfContainers(t *testing.T) {
	f := &fakeEngine{info: ownMachine(t)}
	f.info["NCPU"] = 4
	f.refuse = func(host container.HostConfig) string { // the engine has others than 0 to 3
		if number, err := strconv.Atoi(host.CpusetCpus); err != nil || number < 4 {
			return "Requested CPUs are not available - requested " + host.CpusetCpus + ", available: 4-6,9"
		}
		return ""
	}
	e := openFake(t, f, docker.Options{})
	for i, want := range []string{"4", "5", "6", "9", "4"} {
		if got := f.create(t, e, strconv.Itoa(i), ""); got.CpusetCpus != want {
			t.Errorf("container %d is on %q, want %q", i, got.CpusetCpus, want)
		}
	}
	if err := e.Remove(t.Context(), "id-4"); err != nil { // the engine does not have it
		t.Fatal(err)
	}
	if got := f.create(t, e, "next", ""); got.CpusetCpus != "6" {
		t.Errorf("the next container is on %q, want 6, which has no container", got.CpusetCpus)
	}
}

func TestProcessorsAreNotChosen(t *testing.T) {
	for name, c := range map[string]struct {
		options docker.Options
		info    map[string]any
	}{
		"by configuration": {options: docker.Options{ShareProcessors: true}},
		"by the engine":    {info: map[string]any{"CPUSet": false}},
	} {
		f := &fakeEngine{info: ownMachine(t)}
		f.info["NCPU"] = 4
		for key, value := range c.info {
			f.info[key] = value
		}
		if got := f.create(t, openFake(t, f, c.options), "a", ""); got.CpusetCpus != "" {
			t.Errorf("%s: the container is on %q", name, got.CpusetCpus)
		}
	}
}

// TestFilesAreWrittenAgain: the volume of the files may be removed by whoever cleans up.
func TestFilesAreWrittenAgain(t *testing.T) {
	e, j := open(t), newJanitor(t)
	defer func() { _ = e.Close() }()
	image := importEmpty(t, j.api)
	for _, name := range []string{"sandbox-shown-test-1", "sandbox-shown-test-2"} {
		spec := engine.ContainerSpec{Name: name, ImageID: image, Entrypoint: []string{"/x"}, Resources: engine.Resources{MemoryBytes: 77 << 20}, ShowLimits: true}
		id, err := e.Create(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		found, err := j.api.ContainerInspect(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if len(found.HostConfig.Mounts) != 1 || found.HostConfig.Mounts[0].Target != "/proc/meminfo" {
			t.Errorf("container %s has %+v", name, found.HostConfig.Mounts)
		} else if content, err := os.ReadFile(found.HostConfig.Mounts[0].Source); err != nil || !strings.Contains(string(content), " 78848 kB") {
			t.Errorf("the file has %q, %v", content, err)
		} else if err := os.Remove(found.HostConfig.Mounts[0].Source); err != nil {
			t.Error(err)
		}
		if err := e.Remove(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
}

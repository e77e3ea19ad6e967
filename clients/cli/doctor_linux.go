package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	sandbox "sandbox.internal/clients/go"
)

const (
	defaultEngine = "unix:///var/run/docker.sock"
	// localEngine is the name of the engine that a service brings along.
	localEngine = "local"
	// leastFree is how much space images and sandboxes need to get along, in bytes.
	leastFree = 5 << 30
)

// checkMachine checks what a service on this machine needs. version is what it says about itself,
// nil when it does not.
func (t *tool) checkMachine(ctx context.Context, c *connection, version *sandbox.Version) []check {
	switch {
	case version == nil:
		return append(t.checkEngines(ctx), checkKernel(4, 18), checkGroups())
	case version.Engine == nil:
		return nil // its sandboxes are on a cluster
	case version.Engine.Name == localEngine:
		checks := append(checkLocal(*version.Engine), checkKernel(5, 12), checkGroups())
		return append(checks, checkServiceDisk(ctx, c)...)
	}
	engine, directory := t.checkDocker(ctx)
	checks := []check{engine, checkKernel(4, 18), checkGroups()}
	if directory != "" {
		checks = append(checks, checkDisk(directory, "docker system prune, or a larger disk"))
	}
	return checks
}

// checkLocal repeats what the service says about the engine that it brings along: it has proved at
// its start that an OCI runtime, overlay file systems and control groups are there.
func checkLocal(engine sandbox.Engine) []check {
	checks := []check{{"engine", checkOK, "local, with " + engine.Version, ""}}
	switch {
	case engine.Problem == nil: // another role than admin
	case *engine.Problem == "":
		checks = append(checks, check{"network", checkOK, "nothing is known to keep sandboxes from it", ""})
	default:
		checks = append(checks, check{"network", checkWarn, *engine.Problem,
			"type, as root, what the line above ends with; docs/local.md, Network, has more"})
	}
	switch {
	case engine.HostUsers == nil:
	case *engine.HostUsers == "":
		checks = append(checks, check{"users", checkOK, "root in a sandbox is an ordinary user of the machine", ""})
	default:
		checks = append(checks, check{"users", checkWarn,
			"root in a sandbox is root of the machine, without the capabilities: " + *engine.HostUsers,
			"docs/local.md says what user namespaces take"})
	}
	return append(checks, checkGPUs(engine.Gpus)...)
}

// checkGPUs lists the GPUs that sandboxes can have, of those that specifications of the machine
// offer.
func checkGPUs(gpus *sandbox.EngineGPUs) []check {
	const next = "generate a CDI specification, such as with nvidia-ctk cdi generate; docs/local.md, GPUs, has more"
	switch {
	case gpus == nil: // none are configured, or another role
		return nil
	case gpus.Problem != nil:
		return []check{{"gpus", checkWarn, strings.Join(append(gpus.Devices, *gpus.Problem), ", "), next}}
	case len(gpus.Devices) == 0:
		return []check{{"gpus", checkOK, "none: no CDI specification of this machine has " + gpus.Kind, ""}}
	}
	return []check{{"gpus", checkOK, fmt.Sprintf("%d: %s", len(gpus.Devices), strings.Join(gpus.Devices, ", ")), ""}}
}

// checkEngines looks for what a service that does not answer could use.
func (t *tool) checkEngines(ctx context.Context) []check {
	docker, _ := t.checkDocker(ctx)
	runtime := ociRuntime(ctx)
	switch {
	case runtime == "" && docker.Result != checkOK:
		return []check{{"engine", checkFail,
			"no OCI runtime (" + strings.Join(ociRuntimes, ", ") + ") and no Docker Engine: " + docker.Detail,
			"apt-get install crun (scripts/crun.sh), or start Docker (make engine)"}}
	case runtime == "":
		return []check{docker}
	}
	checks := []check{{"engine", checkOK, "for runtime.type = \"local\": " + runtime, ""}}
	if docker.Result == checkOK {
		docker.Detail = "for runtime.type = \"docker\": " + docker.Detail
		checks = append(checks, docker)
	}
	return append(checks, checkOverlay())
}

// ociRuntimes are those that the local engine looks for, in this order.
var ociRuntimes = []string{"crun", "runc", "runsc"}

// ociRuntime returns the first of them that is installed, with its version; "" when there is none.
func ociRuntime(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	for _, name := range ociRuntimes {
		for _, directory := range []string{"", "/usr/local/sbin", "/usr/sbin", "/sbin"} { // which a user's PATH may lack
			path, err := exec.LookPath(filepath.Join(directory, name))
			if err != nil {
				continue
			}
			output, err := exec.CommandContext(ctx, path, "--version").Output()
			if line, _, _ := strings.Cut(string(output), "\n"); err == nil && line != "" {
				return line
			}
		}
	}
	return ""
}

// checkOverlay looks whether the kernel has overlay file systems. Where they are a module, it is
// loaded when the first one is mounted.
func checkOverlay() check {
	content, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return check{"overlay", checkWarn, err.Error(), ""}
	}
	if slices.Contains(strings.Fields(string(content)), "overlay") {
		return check{"overlay", checkOK, "the kernel has it", ""}
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return check{"overlay", checkWarn, err.Error(), ""}
	}
	directory := filepath.Join("/lib/modules", unix.ByteSliceToString(name.Release[:]), "kernel/fs/overlayfs")
	if modules, _ := filepath.Glob(filepath.Join(directory, "overlay.ko*")); len(modules) > 0 { // or overlay.ko.xz
		return check{"overlay", checkOK, "a module of the kernel", ""}
	}
	return check{"overlay", checkWarn, "the kernel has no overlay file systems, nor " + directory + " such a module", ""}
}

// checkDocker asks the Docker Engine, and returns the directory of its data.
func (t *tool) checkDocker(ctx context.Context) (check, string) {
	host := t.Env("DOCKER_HOST")
	if host == "" {
		host = defaultEngine
	}
	path, ok := strings.CutPrefix(host, "unix://")
	if !ok {
		return check{"engine", checkWarn, "$DOCKER_HOST is " + host + ", which is not checked here",
			"docker version"}, ""
	}
	var info struct{ ServerVersion, DockerRootDir string }
	if err := askEngine(ctx, path, &info); err != nil {
		return check{"engine", checkFail, err.Error(),
			"start it (make engine, or systemctl start docker), and join the group docker"}, ""
	}
	return check{"engine", checkOK, "Docker Engine " + info.ServerVersion, ""}, info.DockerRootDir
}

// askEngine reads /info of an engine that listens on a Unix socket.
func askEngine(ctx context.Context, path string, result any) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err := io.WriteString(conn, "GET /info HTTP/1.0\r\nHost: docker\r\n\r\n"); err != nil {
		return err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %d", path, response.StatusCode)
	}
	return json.NewDecoder(io.LimitReader(response.Body, maxCheckAnswer)).Decode(result)
}

// checkKernel looks for Linux of this version or newer.
func checkKernel(leastMajor, leastMinor int) check {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return check{"kernel", checkWarn, err.Error(), ""}
	}
	release := unix.ByteSliceToString(name.Release[:])
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err == nil &&
		(major < leastMajor || major == leastMajor && minor < leastMinor) {
		return check{"kernel", checkWarn, "Linux " + release,
			fmt.Sprintf("use Linux %d.%d or newer", leastMajor, leastMinor)}
	}
	return check{"kernel", checkOK, "Linux " + release, ""}
}

// checkGroups looks for the controllers that limits need.
func checkGroups() check {
	const root = "/sys/fs/cgroup"
	next := "boot with cgroup_enable=memory, or mount them: without them no limit of a sandbox holds"
	content, err := os.ReadFile(root + "/cgroup.controllers")
	has, version := strings.Fields(string(content)), "version 2"
	if err != nil {
		version = "version 1"
		entries, err := os.ReadDir(root)
		if err != nil {
			return check{"cgroups", checkWarn, err.Error(), next}
		}
		for _, entry := range entries {
			has = append(has, entry.Name())
		}
	}
	var missing []string
	for _, controller := range []string{"memory", "cpu", "pids"} {
		if !slices.Contains(has, controller) {
			missing = append(missing, controller)
		}
	}
	if len(missing) > 0 {
		return check{"cgroups", checkWarn, version + " in " + root + " lacks " + strings.Join(missing, ", "), next}
	}
	return check{"cgroups", checkOK, version, ""}
}

// checkDisk looks for space where images and sandboxes are.
func checkDisk(directory, next string) check {
	var stat unix.Statfs_t
	if err := unix.Statfs(directory, &stat); err != nil {
		return check{"disk", checkWarn, directory + ": " + err.Error(), ""}
	}
	return checkFree(int64(stat.Bavail)*stat.Bsize, directory, next)
}

// checkServiceDisk asks the service, which knows its directories, for the space where its data and
// the local engine's are.
func checkServiceDisk(ctx context.Context, c *connection) []check {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	for load, err := range c.client.WatchHostLoad(ctx) {
		if err != nil {
			break // the role of the key may be another than admin or viewer
		}
		return []check{checkFree(load.DiskTotalBytes-load.DiskUsedBytes, "the data directory of the local engine",
			"sandbox image prune, or a larger disk")}
	}
	return nil
}

// checkFree judges how many bytes are free in a directory.
func checkFree(free int64, directory, next string) check {
	detail := fmt.Sprintf("%s free in %s", bytesOf(free), directory)
	if free < leastFree {
		return check{"disk", checkWarn, detail, next}
	}
	return check{"disk", checkOK, detail, ""}
}

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
	"strings"

	"golang.org/x/sys/unix"
)

const (
	defaultEngine = "unix:///var/run/docker.sock"
	// leastFree is how much space images and sandboxes need to get along, in bytes.
	leastFree = 5 << 30
	// maxEngineAnswer bounds an answer of the engine, in bytes.
	maxEngineAnswer = 1 << 20
)

// checkMachine checks what a service on this machine needs.
func (t *tool) checkMachine(ctx context.Context) []check {
	engine, folder := t.checkEngine(ctx)
	checks := []check{engine, checkKernel(), checkGroups()}
	if folder != "" {
		checks = append(checks, checkDisk(folder))
	}
	return checks
}

// checkEngine asks the Docker Engine, and returns the folder of its data.
func (t *tool) checkEngine(ctx context.Context) (check, string) {
	host := t.Env("DOCKER_HOST")
	if host == "" {
		host = defaultEngine
	}
	path, ok := strings.CutPrefix(host, "unix://")
	if !ok {
		return check{"engine", checkWarn, "$DOCKER_HOST is " + host + ", which is not checked here",
			"docker version"}, ""
	}
	var info struct {
		ServerVersion, DockerRootDir string
		MemoryLimit, CPUCfsQuota     bool `json:",omitempty"`
	}
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
	return json.NewDecoder(io.LimitReader(response.Body, maxEngineAnswer)).Decode(result)
}

func checkKernel() check {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return check{"kernel", checkWarn, err.Error(), ""}
	}
	release := unix.ByteSliceToString(name.Release[:])
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err == nil &&
		(major < 4 || major == 4 && minor < 18) {
		return check{"kernel", checkWarn, "Linux " + release, "use Linux 4.18 or newer"}
	}
	return check{"kernel", checkOK, "Linux " + release, ""}
}

func checkGroups() check {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return check{"cgroups", checkOK, "version 2", ""}
	}
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err == nil {
		return check{"cgroups", checkOK, "version 1", ""}
	}
	return check{"cgroups", checkWarn, "not found below /sys/fs/cgroup",
		"mount them: without them no limit of a sandbox holds"}
}

func checkDisk(folder string) check {
	var stat unix.Statfs_t
	if err := unix.Statfs(folder, &stat); err != nil {
		return check{"disk", checkWarn, folder + ": " + err.Error(), ""}
	}
	free := int64(stat.Bavail) * stat.Bsize
	detail := fmt.Sprintf("%s free in %s", bytesOf(free), folder)
	if free < leastFree {
		return check{"disk", checkWarn, detail, "docker system prune, or a larger disk"}
	}
	return check{"disk", checkOK, detail, ""}
}

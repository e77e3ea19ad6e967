package main

import (
	"cmp"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/server/config"
)

// answerPatience is how long a Docker Engine may take to accept a connection.
const answerPatience = time.Second

// ociRuntimes are the programs that local.oci_runtime is looked up among.
var ociRuntimes = []string{"crun", "runc", "runsc"}

// fitting returns the example of a configuration for what this machine has, and says what that is.
func fitting(key string, getenv func(string) string) (example []byte, says string) {
	host := cmp.Or(getenv("DOCKER_HOST"), "unix:///var/run/docker.sock")
	if answers(host) {
		return config.Init(key), "runtime.type is docker: an engine answers at " + host
	}
	program := ""
	for _, name := range ociRuntimes {
		if _, err := exec.LookPath(name); err == nil {
			program = name
			break
		}
	}
	switch {
	case program == "":
		return config.Init(key), "runtime.type is docker, but no engine answers at " + host +
			": start one, or install crun for runtime.type = \"local\""
	case os.Geteuid() != 0:
		return config.Init(key), "runtime.type is docker, but no engine answers at " + host +
			": start one, or be root for runtime.type = \"local\""
	}
	says = "runtime.type is local: no Docker Engine answers at " + host + ", and " + program + " is installed"
	// A directory that cannot be read fails the start, which names it.
	if installed, err := config.InstalledImages(); err != nil || len(installed) > 0 {
		return withImage(config.InitLocal(key, nil), installed), says
	}
	archives := archivesOf(getenv)
	if len(archives) == 0 {
		says += "\nlocal.archives is empty: scripts/images.sh --archives makes the images of the project"
	}
	return withImage(config.InitLocal(key, archives), archives), says
}

// knownImages are the images of the project that sandboxes are created from, by the names of their
// archives.
var knownImages = []struct{ archive, image string }{{"first.tar", "sandbox/first:dev"}, {"base.tar", "sandbox/base:dev"}}

// withImage gives an example a default image when one of the archives has one.
func withImage(example []byte, archives []string) []byte {
	for _, known := range knownImages {
		if slices.ContainsFunc(archives, func(path string) bool { return filepath.Base(path) == known.archive }) {
			return config.WithImage(example, known.image)
		}
	}
	return example
}

// thisMachine is what limits of sandboxes are fitted to.
func thisMachine() config.Machine {
	m := config.Machine{CPUs: runtime.NumCPU()}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		m.MemoryBytes = int64(info.Totalram) * int64(info.Unit) //nolint:gosec,unconvert // bytes of memory; the type depends on the processor
	}
	_, missing := os.Stat("/dev/loop-control")
	m.BoundsDisk = missing == nil && slices.ContainsFunc([]string{"mkfs.ext4", "/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4"}, func(program string) bool {
		_, err := exec.LookPath(program)
		return err == nil
	})
	return m
}

// answers reports whether something accepts a connection at the address of a Docker Engine.
func answers(host string) bool {
	network, address, found := strings.Cut(host, "://")
	if !found {
		return false
	}
	if network != "unix" {
		network = "tcp"
	}
	connection, err := net.DialTimeout(network, address, answerPatience)
	if err != nil {
		return false
	}
	_ = connection.Close()
	return true
}

// archivesOf returns the archives that scripts/images.sh has made for this user.
func archivesOf(getenv func(string) string) []string {
	cache := getenv("SANDBOX_CACHE")
	if cache == "" {
		directory := cmp.Or(getenv("XDG_CACHE_HOME"), filepath.Join(getenv("HOME"), ".cache"))
		cache = filepath.Join(directory, "sandbox")
	}
	var archives []string
	for _, name := range []string{"execd", "base"} {
		path := filepath.Join(cache, "archives", name+".tar")
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && filepath.IsAbs(path) {
			archives = append(archives, path)
		}
	}
	return archives
}

package app

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"syscall"

	"sandbox.internal/server/config"
)

// claim makes this process the only service of its instance on the engine, until the returned listener is closed or the process ends,
// however it ends. Two services of one instance would take each other's containers for their own.
//
// The claim is a socket in the kernel's abstract name space: it leaves nothing behind. It is seen within one network namespace,
// so services on two machines, or in two containers, do not see each other's.
func claim(cfg config.Config) (net.Listener, error) {
	held := sha256.Sum256([]byte(engineAddress(cfg.Environment.DockerHost) + "\x00" + cfg.Server.Instance))
	listener, err := net.Listen("unix", "@sandbox.internal/instance/"+hex.EncodeToString(held[:16]))
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("server.instance: another service on this machine is instance %q of the same container engine; stop it, or give one of them another name", cfg.Server.Instance)
	}
	if err != nil {
		return nil, fmt.Errorf("claim server.instance %q: %w", cfg.Server.Instance, err)
	}
	return listener, nil
}

// engineAddress returns one name for an engine that has several: the way to a socket can lead through links.
func engineAddress(host string) string {
	parsed, err := url.Parse(host)
	if host != "" && (err != nil || parsed.Scheme != "unix") {
		return host
	}
	path := "/var/run/docker.sock" // the client's default
	if host != "" {
		path = parsed.Path
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	return "unix://" + path
}

package app

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"syscall"

	"sandbox.internal/internal/flock"
	"sandbox.internal/server/config"
)

// claim makes this process the only service of its instance on the engine, until what it returns is
// closed or the process ends, however it ends. Two services of one instance would take each other's
// containers for their own.
//
// The claim is a lock on a file that every user of this machine can reach and no sandbox can: the
// kernel's abstract name space for sockets, which leaves nothing behind, is open to a sandbox in
// host mode. The file stays. Services in containers of their own, or on two machines, do not see
// each other's.
func claim(cfg config.Config) (io.Closer, error) {
	address := engineAddress(cfg.Environment.DockerHost)
	if cfg.Runtime.Type == config.RuntimeLocal {
		address = "local:" + cfg.Local.Directory(cfg.Server)
	}
	held := sha256.Sum256([]byte(address + "\x00" + cfg.Server.Instance))
	path := filepath.Join(lockDirectory(cfg.Server.DataDir), "sandbox-server-"+hex.EncodeToString(held[:16])+".lock")
	file, err := openLock(path)
	if err != nil {
		return nil, fmt.Errorf("claim server.instance %q: %w", cfg.Server.Instance, err)
	}
	err = flock.Exclusive(file)
	switch {
	case errors.Is(err, flock.ErrHeld):
		err = fmt.Errorf("server.instance: another service on this machine is instance %q of the same container engine (it holds %s); stop it, or give one of them another name",
			cfg.Server.Instance, path)
	case err != nil:
		err = fmt.Errorf("claim server.instance %q: lock %s: %w", cfg.Server.Instance, path, err)
	default:
		return file, nil
	}
	return nil, errors.Join(err, file.Close())
}

// openLock opens a file to lock it, and makes it first where it does not exist. A lock needs no
// right to write, so the file can be any user's.
func openLock(path string) (*os.File, error) {
	for {
		file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
		if !errors.Is(err, fs.ErrNotExist) {
			return file, err
		}
		file, err = os.OpenFile(path, os.O_RDONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if !errors.Is(err, fs.ErrExist) {
			return file, err
		}
	}
}

// lockDirectory is the machine's directory for locks where every user may make one, else its
// directory for temporary files. The service's image has neither: there the service sees only
// itself, and takes its own directory.
func lockDirectory(own string) string {
	const forAll = fs.ModeSticky | 0o002
	for _, directory := range []string{"/run/lock", "/tmp"} {
		if info, err := os.Stat(directory); err == nil && info.IsDir() && info.Mode()&forAll == forAll {
			return directory
		}
	}
	return own
}

// engineAddress returns one name for an engine that has several: the way to a socket can lead
// through links.
func engineAddress(host string) string {
	path := engineSocket(host)
	if path == "" {
		return host
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	return "unix://" + path
}

// engineSocket is the path of the engine's socket, "" when it has none.
func engineSocket(host string) string {
	if host == "" {
		return "/var/run/docker.sock" // the client's default
	}
	parsed, err := url.Parse(host)
	if err != nil || parsed.Scheme != "unix" {
		return ""
	}
	return parsed.Path
}

package keeper

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// exitFileBytes is more than an exit status takes.
	exitFileBytes = 16
	// exitFileBlank is in an exit file at first: what replaces it needs no room on a disk that the
	// container has filled.
	exitFileBlank = "    "
)

func newEnd(status unix.WaitStatus, at time.Time) End {
	if status.Signaled() {
		return End{ExitCode: 128 + int(status.Signal()), Signal: int(status.Signal()), At: at}
	}
	return End{ExitCode: status.ExitStatus(), At: at}
}

// exitFileEnd returns the end of a process whose exit status the kernel no longer has. The first
// process of a PID namespace that has not written its exit status was killed by SIGKILL: its
// namespace's own signals do not kill it.
func exitFileEnd(path string, at time.Time) End {
	killed := End{ExitCode: 128 + int(unix.SIGKILL), Signal: int(unix.SIGKILL), At: at}
	if path == "" {
		return killed
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return killed
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	// The container could write to it, whatever it liked.
	data, err := io.ReadAll(io.LimitReader(file, exitFileBytes))
	if err != nil {
		return killed
	}
	code, err := strconv.ParseUint(string(bytes.TrimSpace(data)), 10, 8)
	if err != nil {
		return killed
	}
	if info, err := file.Stat(); err == nil && info.ModTime().Before(at) {
		at = info.ModTime()
	}
	return End{ExitCode: int(code), At: at}
}

// writeEnd writes an end file as a whole or not at all.
func writeEnd(path string, end End) error {
	data, err := json.Marshal(end)
	if err != nil {
		return err
	}
	next := path + ".new"
	if err := os.WriteFile(next, append(data, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// ReadEnd reads the end file of a container. The error wraps [fs.ErrNotExist] when there is none.
func ReadEnd(path string) (End, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return End{}, err
	}
	var end End
	if err := json.Unmarshal(data, &end); err != nil {
		return End{}, &os.PathError{Op: "parse", Path: path, Err: err}
	}
	return end, nil
}

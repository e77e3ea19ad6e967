package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// startTimeout bounds the start of the program, and its answer to the first message.
	startTimeout = 10 * time.Second
	// connectPause is between two looks for a keeper that another service has just started, or that
	// is about to end.
	connectPause = 5 * time.Millisecond
)

// errBusy is the error of a start beside another keeper.
var errBusy = errors.New("another keeper has the directory")

// connect returns a connection to the keeper of this program, which it starts when there is none,
// or one of another program.
func (o *Options) connect(ctx context.Context) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	version, err := programVersion(o.Program)
	if err != nil {
		return nil, fmt.Errorf("program of the keeper: %w", err)
	}
	for {
		l, err := o.dial(ctx)
		switch {
		case err == nil && l.version == version:
			return l, nil
		case err == nil:
			o.Logger.Info().Int("pid", l.pid).Msg("keeper of another version: replacing it")
			l.leave(ctx)
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ECONNREFUSED), errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET),
			errors.Is(err, unix.EPIPE):
			if err := o.start(ctx); err != nil && !errors.Is(err, errBusy) {
				return nil, err
			}
		default:
			return nil, err
		}
		select {
		case <-time.After(connectPause):
		case <-ctx.Done():
			return nil, fmt.Errorf("connect to the keeper: %w", ctx.Err())
		}
	}
}

// start starts the program and returns when it serves.
func (o *Options) start(ctx context.Context) error {
	if err := os.MkdirAll(o.Directory, 0o700); err != nil {
		return err
	}
	// What it prints there is little, and bounded; what an earlier one has printed is of no use any
	// more.
	printed, err := os.OpenFile(filepath.Join(o.Directory, stderrName), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer printed.Close()
	report, reportWriter, err := os.Pipe()
	if err != nil {
		return err
	}
	defer report.Close()
	args := []string{"--directory", o.Directory, "--report-fd", "3"}
	for _, directory := range o.CgroupDirectories {
		args = append(args, "--cgroup", directory)
	}
	command := exec.Command(o.Program, args...)
	command.Dir = "/"
	command.Env = runtimeEnvironment // nothing of the service's, which may have secrets
	command.Stdout, command.Stderr = printed, printed
	command.ExtraFiles = []*os.File{reportWriter}
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // not ended with the service's session or process group
	err = command.Start()
	reportWriter.Close()
	if err != nil {
		return fmt.Errorf("start the keeper: %w", err)
	}
	go func() {
		// How it ends is seen at its connection; this only reaps it.
		_ = command.Wait()
	}()
	if deadline, ok := ctx.Deadline(); ok {
		_ = report.SetReadDeadline(deadline) // pipes have deadlines
	}
	text, err := io.ReadAll(io.LimitReader(report, stderrBytes))
	switch {
	case err != nil:
		return fmt.Errorf("start the keeper: %w", err)
	case string(text) == ready:
		o.Logger.Info().Int("pid", command.Process.Pid).Msg("keeper started")
		return nil
	case string(text) == busy:
		return errBusy
	case len(text) == 0:
		return fmt.Errorf("start the keeper: it has ended, see %s", filepath.Join(o.Directory, stderrName))
	}
	return fmt.Errorf("start the keeper: %s", text)
}

// ListenerPID returns the process id of the keeper that listens in the directory, which is not
// always the one that a [Client] is connected to. The error wraps ENOENT or ECONNREFUSED when there
// is none.
func ListenerPID(directory string) (int, error) {
	s, err := dial(directory)
	if err != nil {
		return 0, err
	}
	defer s.close()
	var peer *unix.Ucred
	var peerErr error
	err = s.raw.Control(func(fd uintptr) { peer, peerErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, peerErr); err != nil {
		return 0, err
	}
	return int(peer.Pid), nil
}

// RemoveFiles removes what keepers have left in the directory, in which none runs any more. Files
// that are missing are ignored.
func RemoveFiles(directory string) error {
	var errs []error
	for _, name := range []string{socketName, lockName, stderrName} {
		if err := os.Remove(filepath.Join(directory, name)); !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

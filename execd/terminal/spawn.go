package terminal

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/creack/pty"
	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"sandbox.internal/execd/process"
)

// The size of a terminal that names none.
const (
	defaultRows = 24
	defaultCols = 80
)

// termType is what programs are told about the terminal; every emulator of today understands it.
const termType = "TERM=xterm-256color"

// Spec is a terminal to start.
type Spec struct {
	Command string            // a program's name or path; empty means bash, or sh where there is none
	Args    []string          // its arguments
	Dir     string            // working directory; empty means the manager's
	Env     map[string]string // added to the manager's
	Rows    uint16            // 0 means 24
	Cols    uint16            // 0 means 80
}

func (m *Manager) start(spec Spec) (*Terminal, error) {
	program, err := m.prepare(spec)
	if err != nil {
		return nil, err
	}
	if spec.Rows == 0 {
		spec.Rows = defaultRows
	}
	if spec.Cols == 0 {
		spec.Cols = defaultCols
	}
	createdAt := m.options.Clock()
	master, err := pty.StartWithSize(program, &pty.Winsize{Rows: spec.Rows, Cols: spec.Cols})
	if err != nil {
		return nil, startError(program.Path, err)
	}
	if master, err = pollable(master); err != nil {
		program.Process.Kill()
		program.Wait()
		return nil, err
	}
	return &Terminal{
		id:        uuid.NewString(),
		command:   program.Args,
		createdAt: createdAt,
		process:   program,
		master:    master,
		typing:    make(chan struct{}, 1),
		over:      make(chan struct{}),
		rows:      spec.Rows,
		cols:      spec.Cols,
		changed:   make(chan struct{}),
	}, nil
}

// pollable returns a file for the same terminal whose reads and writes have deadlines and cost no thread while they wait. pty has
// made its own a blocking one.
func pollable(master *os.File) (*os.File, error) {
	defer master.Close()
	fd, err := unix.FcntlInt(master.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		return nil, fmt.Errorf("prepare the terminal: %w", err)
	}
	return os.NewFile(uintptr(fd), "/dev/ptmx"), nil
}

func (m *Manager) prepare(spec Spec) (*exec.Cmd, error) {
	dir := process.WorkingDirectory(spec.Dir, m.options.Dir, m.env)
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil, invalidf("cwd: %q is not a directory", dir)
	}
	env, err := process.AddVariables(slices.Concat(m.env, []string{termType, "PWD=" + dir}), spec.Env)
	if err != nil {
		return nil, invalidf("envs: %v", err)
	}
	for i, arg := range spec.Args {
		if strings.ContainsRune(arg, 0) {
			return nil, invalidf("args/%d: must not contain a NUL byte", i)
		}
	}
	path, name := "", spec.Command
	switch {
	case name != "":
		path = process.Find(name, dir, env)
	case len(spec.Args) > 0:
		return nil, invalidf("args: need a command")
	default:
		// Not a login shell: its profile would replace the PATH that the image sets.
		path, name = process.Shell(env), "sh"
		if path != "" {
			name = filepath.Base(path)
		}
	}
	if path == "" {
		return nil, invalidf("command: %q is not an executable file or the name of one", name)
	}
	return &exec.Cmd{Path: path, Args: append([]string{name}, spec.Args...), Dir: dir, Env: env}, nil
}

func startError(path string, err error) error {
	switch {
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.ENOEXEC), errors.Is(err, syscall.ENOENT):
		return invalidf("command: %s cannot be run: %v", path, err)
	case errors.Is(err, syscall.E2BIG):
		return invalidf("args and envs: too long for the kernel")
	}
	return fmt.Errorf("start %s in a terminal: %w", path, err)
}

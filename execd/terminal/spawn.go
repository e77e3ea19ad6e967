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
	"time"

	"github.com/creack/pty"
	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"sandbox.internal/execd/internal/identity"
	"sandbox.internal/execd/internal/invalid"
	"sandbox.internal/internal/process"
)

// The size of a terminal that names none.
const (
	defaultRows = 24
	defaultCols = 80
)

// termType is the terminal's type for programs (TERM); every emulator of today understands it.
const termType = "TERM=xterm-256color"

// locale is what a terminal has whose image says nothing of one: who types into it sees and writes
// UTF-8, which the shell has to know to edit a line. Every C library has it, or takes it for C.
const locale = "LANG=C.UTF-8"

// localeVariables decide the character set, the first that is not empty (locale(7)).
var localeVariables = []string{"LC_ALL", "LC_CTYPE", "LANG"}

// Spec is a terminal to start.
type Spec struct {
	Command string            // a program's name or path; empty means bash, or sh where there is none
	Args    []string          // arguments of the program
	Dir     string            // working directory; empty means the manager's
	Env     map[string]string // added to the manager's
	UID     *uint32           // user to run as; nil means the daemon's own
	GID     *uint32           // group to run as; nil means the primary group of UID, or the daemon's own without a UID
	Timeout time.Duration     // after which the terminal is hung up; 0 means never
	Abrupt  bool              // after the timeout the processes are killed at once
	Rows    uint16            // 0 means 24
	Cols    uint16            // 0 means 80
	// Ended is called once, with the status of a terminal that was started and has ended; nil means
	// not.
	Ended func(Status)
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
	master, err := open(program, &pty.Winsize{Rows: spec.Rows, Cols: spec.Cols})
	if err != nil {
		return nil, startError(spec, program.Path, err)
	}
	if master, err = pollable(master); err != nil {
		program.Process.Kill()
		program.Wait()
		return nil, err
	}
	t := &Terminal{
		id:        uuid.NewString(),
		command:   program.Args,
		createdAt: createdAt,
		timeout:   spec.Timeout,
		abrupt:    spec.Abrupt,
		enter:     m.options.Enter,
		holds:     m.options.Holds,
		process:   program,
		master:    master,
		typing:    make(chan struct{}, 1),
		over:      make(chan struct{}),
		rows:      spec.Rows,
		cols:      spec.Cols,
		changed:   make(chan struct{}),
	}
	t.taken.L = &t.mu
	return t, nil
}

// open starts the program on a new terminal, which is its user's, and returns the terminal's other
// side.
func open(program *exec.Cmd, size *pty.Winsize) (*os.File, error) {
	master, slave, err := pty.Open()
	if err != nil {
		return nil, err
	}
	defer slave.Close() // the program has its own
	if credential := program.SysProcAttr.Credential; credential != nil {
		// Programs open their terminal by its name, too. The group stays the one that the kernel
		// gives terminals. Without the right to give files away (CAP_CHOWN) the program still has
		// the descriptors.
		_ = unix.Fchown(int(slave.Fd()), int(credential.Uid), -1)
	}
	program.Stdin, program.Stdout, program.Stderr = slave, slave, slave
	if err = pty.Setsize(master, size); err == nil {
		err = expectUTF8(slave)
	}
	if err == nil {
		err = program.Start()
	}
	if err != nil {
		master.Close()
		return nil, err
	}
	process.PreferForOOMKill(program.Process.Pid)
	return master, nil
}

// expectUTF8 has the kernel erase whole characters where it edits lines itself (termios(3), IUTF8).
func expectUTF8(slave *os.File) error {
	settings, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err != nil {
		return fmt.Errorf("read the terminal's settings: %w", err)
	}
	settings.Iflag |= unix.IUTF8
	if err := unix.IoctlSetTermios(int(slave.Fd()), unix.TCSETS, settings); err != nil {
		return fmt.Errorf("change the terminal's settings: %w", err)
	}
	return nil
}

// withLocale adds the locale to an environment that says nothing of one.
func withLocale(env []string) []string {
	for _, name := range localeVariables {
		if value, _ := process.Variable(env, name); value != "" {
			return env
		}
	}
	return append(env, locale)
}

// pollable returns a file for the same terminal whose reads and writes have deadlines and cost no
// thread while they wait. pty has made its own a blocking one.
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
	if err := process.IsDirectory(dir); err != nil {
		return nil, invalid.Errorf("cwd: %v", err)
	}
	as, err := identity.Of(spec.UID, spec.GID)
	if errors.Is(err, identity.ErrTooManyGroups) {
		return nil, invalid.Errorf("uid: %v", err)
	}
	if err != nil {
		return nil, err
	}
	env, err := process.AddVariables(slices.Concat(m.env, []string{termType, "PWD=" + dir}, as.Env), spec.Env)
	if err != nil {
		return nil, invalid.Errorf("envs: %v", err)
	}
	env = withLocale(env)
	for i, arg := range spec.Args {
		if strings.ContainsRune(arg, 0) {
			return nil, invalid.Errorf("args/%d: must not contain a NUL byte", i)
		}
	}
	path, name := "", spec.Command
	switch {
	case name != "":
		path = process.Find(name, dir, env)
	case len(spec.Args) > 0:
		return nil, invalid.Errorf("args: need a command")
	default:
		// Not a login shell: its profile would replace the PATH that the image sets.
		path, name = process.Shell(env), "sh"
		if path != "" {
			name = filepath.Base(path)
		}
	}
	if path == "" {
		return nil, invalid.Errorf("command: %q is not an executable file or the name of one", name)
	}
	return &exec.Cmd{
		Path: path, Args: append([]string{name}, spec.Args...), Dir: dir, Env: env,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Setctty: true, Credential: as.Credential},
	}, nil
}

func startError(spec Spec, path string, err error) error {
	other := spec.UID != nil || spec.GID != nil
	switch {
	case errors.Is(err, syscall.EPERM) && other:
		return invalid.Errorf("uid and gid: the daemon may not run programs as another user")
	case errors.Is(err, syscall.EINVAL) && other:
		return invalid.Errorf("uid and gid: the sandbox's user namespace has no such user or group")
	case errors.Is(err, syscall.EACCES) && other:
		return invalid.Errorf("command: the program's user may not run %s, or may not enter cwd", path)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.ENOEXEC), errors.Is(err, syscall.ENOENT):
		return invalid.Errorf("command: %s cannot be run: %v", path, err)
	case errors.Is(err, syscall.E2BIG):
		return invalid.Errorf("args and envs: too long for the kernel")
	}
	return fmt.Errorf("start %s in a terminal: %w", path, err)
}

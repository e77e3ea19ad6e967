package terminal

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/creack/pty"
	"github.com/google/uuid"
	"golang.org/x/sys/unix"
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
	process, err := m.prepare(spec)
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
	master, err := pty.StartWithSize(process, &pty.Winsize{Rows: spec.Rows, Cols: spec.Cols})
	if err != nil {
		return nil, startError(process.Path, err)
	}
	if master, err = pollable(master); err != nil {
		process.Process.Kill()
		process.Wait()
		return nil, err
	}
	return &Terminal{
		id:        uuid.NewString(),
		command:   process.Args,
		createdAt: createdAt,
		process:   process,
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
	dir := m.folder(spec.Dir)
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil, invalidf("cwd: %q is not a directory", dir)
	}
	env := slices.Concat(m.env, []string{termType, "PWD=" + dir})
	for _, name := range slices.Sorted(maps.Keys(spec.Env)) {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(spec.Env[name], 0) {
			return nil, invalidf("envs: %q: a name must be non-empty and without '=', and neither name nor value may contain a NUL byte", name)
		}
		env = append(env, name+"="+spec.Env[name])
	}
	for i, arg := range spec.Args {
		if strings.ContainsRune(arg, 0) {
			return nil, invalidf("args/%d: must not contain a NUL byte", i)
		}
	}
	path, name := "", spec.Command
	switch {
	case name != "":
		path = find(name, dir, env)
	case len(spec.Args) > 0:
		return nil, invalidf("args: need a command")
	default:
		// Not a login shell: its profile would replace the PATH that the image sets.
		for _, name = range []string{"bash", "sh"} {
			if path = find(name, dir, env); path != "" {
				break
			}
		}
	}
	if path == "" {
		return nil, invalidf("command: %q is not an executable file or the name of one", name)
	}
	return &exec.Cmd{Path: path, Args: append([]string{name}, spec.Args...), Dir: dir, Env: env}, nil
}

// folder returns the absolute path that a request's working directory means: a leading ~/ is the home of the daemon's user, and
// what is relative starts at the manager's folder.
func (m *Manager) folder(dir string) string {
	switch {
	case dir == "~" || strings.HasPrefix(dir, "~/"):
		home := variable(m.env, "HOME")
		if home == "" {
			home = "/"
		}
		return filepath.Join(home, dir[1:])
	case filepath.IsAbs(dir):
		return dir
	}
	return filepath.Join(m.options.Dir, dir)
}

// find returns the path of a program: a path as it is, a name from the PATH of env or where programs usually are.
func find(name, dir string, env []string) string {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		return executable(name)
	}
	for _, folder := range filepath.SplitList(variable(env, "PATH") + ":/usr/local/bin:/usr/bin:/bin") {
		if !filepath.IsAbs(folder) {
			continue
		}
		if path := executable(filepath.Join(folder, name)); path != "" {
			return path
		}
	}
	return ""
}

// executable returns the path if there is a program at it.
func executable(path string) string {
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
		return path
	}
	return ""
}

// variable returns a variable's value in an environment; the last one counts.
func variable(env []string, name string) string {
	for _, entry := range slices.Backward(env) {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
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

package taskexecutor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sandbox.internal/internal/process"
	"sandbox.internal/internal/tasks"
)

// reportDescriptor is where Enter says why it failed. It is closed when the task's program takes
// over.
const reportDescriptor = 3

// Enter becomes the task's process: it goes to where the main container's process sees its files,
// takes on what that process is and may do, and executes the task's program. It returns the exit
// code when it fails.
//
// The other namespaces are the pod's. The mount namespace stays ours, because joining another one
// takes CAP_SYS_ADMIN, which pods do not give.
func Enter(args []string) int {
	// What a thread may do is the thread's; the one that executes the program counts.
	runtime.LockOSThread()
	report := os.NewFile(reportDescriptor, "report")
	unix.CloseOnExec(reportDescriptor)
	err := enter(args)
	fmt.Fprint(report, err)
	return process.StartFailure(err)
}

// enter returns only when it fails.
func enter(args []string) error {
	if len(args) != 5 {
		return errors.New("usage: enter FOLDER PID START PID START")
	}
	parent := unix.Getppid()
	main, err := parseID(args[1], args[2])
	marked, err2 := parseID(args[3], args[4])
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	process.PreferForOOMKill(os.Getpid()) // before the executor and the shims, which share its memory
	record, err := directory(args[0]).task()
	if err != nil {
		return err
	}
	task := record.Task
	host, err := inspect(main, marked)
	if err != nil {
		return fmt.Errorf("inspect the main container: %w", err)
	}
	if err := host.enter(task.WorkingDir); err != nil {
		return err
	}
	if err := host.credentials.take(); err != nil {
		return fmt.Errorf("set the credentials of the main container: %w", err)
	}
	// The kernel forgets this when the user changes.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return err
	}
	if unix.Getppid() != parent {
		return errors.New("the shim has exited")
	}
	return execute(slices.Concat(task.Command, task.Args), environment(host.environ, task.Env))
}

func parseID(pid, start string) (id process.ID, err error) {
	if id.PID, err = strconv.Atoi(pid); err == nil {
		id.Start, err = strconv.ParseUint(start, 10, 64)
	}
	return id, err
}

// mainContainer is what is needed of the main container's process, and cannot be reached any more
// from inside of that container.
type mainContainer struct {
	root, cwd   *os.File
	environ     []string
	credentials credentials
}

// inspect looks at the main container's process, and for the environment at the one that has the
// marker.
func inspect(main, marked process.ID) (*mainContainer, error) {
	m := &mainContainer{}
	dir, err := openProcess(main)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	data, err := readAt(dir, "status")
	if err != nil {
		return nil, err
	}
	if m.credentials, err = parseCredentials(string(data)); err != nil {
		return nil, fmt.Errorf("understand its status: %w", err)
	}
	data, err = readEnviron(marked)
	if marked != main && err != nil { // it has ended: its own, with whatever is in it now
		data, err = readAt(dir, "environ")
	}
	if err != nil {
		return nil, err
	}
	m.environ = strings.FieldsFunc(string(data), func(char rune) bool { return char == 0 })
	if m.root, err = openAt(dir, "root", unix.O_PATH|unix.O_DIRECTORY); err != nil {
		return nil, err
	}
	m.cwd, err = openAt(dir, "cwd", unix.O_PATH|unix.O_DIRECTORY)
	return m, err
}

// openProcess opens a process's directory of /proc. It stays that of its process: once this is the
// right one, so is all that is opened below it.
func openProcess(id process.ID) (*os.File, error) {
	dir, err := os.Open(procPath(id.PID, ""))
	if err != nil {
		return nil, err
	}
	data, err := readAt(dir, "stat")
	if err == nil {
		var s process.Stat
		if s, err = process.ParseStat(data); err != nil || s.Start != id.Start {
			err = errors.Join(process.ErrEnded, err)
		}
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

func readEnviron(id process.ID) ([]byte, error) {
	dir, err := openProcess(id)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return readAt(dir, "environ")
}

func openAt(dir *os.File, name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: filepath.Join(dir.Name(), name), Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// maxProcFile bounds what is read of a file of /proc, in bytes. A program gets 6 MiB of environment
// at most (execve(2)), but may call any of its memory so (PR_SET_MM in prctl(2)), gigabytes of it.
const maxProcFile = 8 << 20

// readAt fails when the file is larger than maxProcFile.
func readAt(dir *os.File, name string) ([]byte, error) {
	file, err := openAt(dir, name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var data []byte
	for buffer := make([]byte, 32<<10); ; {
		n, err := unix.Read(int(file.Fd()), buffer)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, &fs.PathError{Op: "read", Path: filepath.Join(dir.Name(), name), Err: err}
		case n == 0:
			return data, nil
		case len(data)+n > maxProcFile:
			return nil, &fs.PathError{Op: "read", Path: filepath.Join(dir.Name(), name), Err: unix.EFBIG}
		default:
			data = append(data, buffer[:n]...)
		}
	}
}

// enter makes the main container's root and working directory ours.
func (m *mainContainer) enter(workingDir string) error {
	if err := unix.Fchdir(int(m.root.Fd())); err != nil {
		return fmt.Errorf("go to the main container's root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("make the main container's root ours (it takes CAP_SYS_CHROOT): %w", err)
	}
	if workingDir == "" {
		if err := unix.Fchdir(int(m.cwd.Fd())); err != nil {
			return fmt.Errorf("go to the main container's working directory: %w", err)
		}
		return nil
	}
	if err := unix.Chdir(workingDir); err != nil {
		return &fs.PathError{Op: "workingDir: go to", Path: workingDir, Err: err}
	}
	return nil
}

// take makes this process what the other one is: its user and groups, and what it and its children
// can ever be allowed. For the rest the rules of execve(2) do.
func (c credentials) take() error {
	unix.Umask(c.umask)
	var own [2]unix.CapUserData
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capget(&header, &own[0]); err != nil {
		return err
	}
	for capability := 0; capability < 64; capability++ {
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(capability), 0, 0, 0)
		if err != nil {
			break // there are no more
		}
		if has == 1 && c.bounding&(1<<capability) == 0 {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(capability), 0, 0, 0); err != nil {
				return fmt.Errorf("give up capability %d (it takes CAP_SETPCAP): %w", capability, err)
			}
		}
	}
	for i := range own {
		own[i].Inheritable = uint32(c.inheritable>>(32*i)) & own[i].Permitted
	}
	if err := unix.Capset(&header, &own[0]); err != nil {
		return fmt.Errorf("set inheritable capabilities: %w", err)
	}
	if err := unix.Setgroups(c.groups); err != nil {
		return fmt.Errorf("set groups (it takes CAP_SETGID): %w", err)
	}
	if err := unix.Setresgid(c.gid, c.gid, c.gid); err != nil {
		return fmt.Errorf("become group %d (it takes CAP_SETGID): %w", c.gid, err)
	}
	if err := unix.Setresuid(c.uid, c.uid, c.uid); err != nil {
		return fmt.Errorf("become user %d (it takes CAP_SETUID): %w", c.uid, err)
	}
	if c.noNewPrivs {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("set no_new_privs: %w", err)
		}
	}
	return nil
}

// environment is the main container's with the task's variables on top, each name once. The
// daemon's own variables, and its token with them, are left out.
func environment(base []string, own []tasks.EnvVar) []string {
	values := make(map[string]string)
	var names []string
	set := func(name, value string) {
		if _, ok := values[name]; !ok {
			names = append(names, name)
		}
		values[name] = value
	}
	for _, entry := range process.Environment(base) {
		if name, value, ok := strings.Cut(entry, "="); ok && name != "" {
			set(name, value)
		}
	}
	for _, variable := range own {
		set(variable.Name, variable.Value)
	}
	result := make([]string, len(names))
	for i, name := range names {
		result[i] = name + "=" + values[name]
	}
	return result
}

// execute replaces this process, as execvp(3) does.
func execute(argv, environ []string) error {
	program := argv[0]
	candidates := []string{program}
	if !strings.Contains(program, "/") {
		candidates = nil
		for _, dir := range filepath.SplitList(process.Path(environ)) {
			candidates = append(candidates, filepath.Join(dir, program))
		}
	}
	failure := error(unix.ENOENT)
	for _, candidate := range candidates {
		switch err := unix.Exec(candidate, argv, environ); {
		case errors.Is(err, unix.EACCES):
			failure = err // unless a later one can be executed
		case !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR):
			return fmt.Errorf("command: execute %q: %w", candidate, err)
		}
	}
	return fmt.Errorf("command: execute %q: %w", program, failure)
}

package keeper

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	exitFailure = 1
	exitUsage   = 2

	// separated is the variable that a keeper finds when it is in its own mount namespace.
	separated = "SANDBOX_KEEPER_SEPARATED"
	// ready and busy are what a keeper writes to --report-fd; anything else is why it does not
	// work.
	ready = "ready"
	busy  = "busy"
	// memoryTarget makes the garbage collector work harder before the process grows to the 10 MiB
	// that it may have.
	memoryTarget = 8 << 20
	// processors is how many the keeper uses at once.
	processors = 2
)

const usage = `usage: sandbox-keeper --directory FOLDER [--cgroup FOLDER]... [--report-fd N]

Starts and reaps the containers of the local engine. The service starts it; there is one for each directory, and another one ends at once.

  --directory FOLDER   where its socket is; made when it is missing
  --cgroup FOLDER   cgroup directory that it moves itself to; may be repeated
  --report-fd N     open file to which it writes whether it works

Exit codes: 0 when another program replaces it, 1 after a failure, 2 for a wrong command line.
`

// settings are the command line of the program.
type settings struct {
	directory string
	cgroups   []string
	reportFD  int
}

// Main is the program sandbox-keeper. It returns the exit code, once the keeper cannot go on.
//
// It waits for all children of the process and takes over its signals: nothing else may run in it.
func Main(args []string) int {
	s, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		_, _ = os.Stdout.WriteString(usage)
		return 0
	}
	if err != nil {
		_, _ = os.Stderr.WriteString("sandbox-keeper: " + err.Error() + "\n" + usage)
		return exitUsage
	}
	if os.Getenv(separated) == "" {
		err = separate(&s)
	} else {
		err = run(&s)
	}
	if errors.Is(err, errBusy) {
		s.report(busy)
		return exitFailure
	}
	s.report(err.Error())
	_, _ = os.Stderr.WriteString("sandbox-keeper: " + err.Error() + "\n")
	return exitFailure
}

func parse(args []string) (s settings, err error) {
	flags := flag.NewFlagSet("sandbox-keeper", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&s.directory, "directory", "", "")
	flags.IntVar(&s.reportFD, "report-fd", -1, "")
	flags.Func("cgroup", "", func(directory string) error {
		s.cgroups = append(s.cgroups, directory)
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	switch {
	case flags.NArg() > 0:
		return s, errors.New("no arguments but flags: " + strings.Join(flags.Args(), " "))
	case !filepath.IsAbs(s.directory):
		return s, errors.New("flag --directory: must be an absolute path, got \"" + s.directory + "\"")
	}
	return s, nil
}

// report writes to --report-fd, once.
func (s *settings) report(text string) {
	if s.reportFD >= 0 {
		_, _ = unix.Write(s.reportFD, []byte(text))
		unix.Close(s.reportFD)
		s.reportFD = -1
	}
}

// separate moves this process to its cgroups, and executes the program again in a mount namespace
// of its own, in which all its threads are then. It returns only an error.
func separate(s *settings) error {
	runtime.LockOSThread()
	for _, directory := range s.cgroups {
		if err := (cgroups{unified: -1}).attach(directory, "0"); err != nil {
			return err
		}
	}
	if err := separateMounts(); err != nil {
		return err
	}
	err := unix.Exec("/proc/self/exe", os.Args, append(os.Environ(), separated+"=1"))
	return os.NewSyscallError("execve", err)
}

func run(s *settings) error {
	if s.reportFD >= 0 {
		unix.CloseOnExec(s.reportFD)
	}
	_ = os.WriteFile("/proc/self/comm", []byte("sandbox-keeper"), 0) // in ps and top; it was executed as /proc/self/exe
	// Runtimes make mount points in the root of a container with what the mask leaves, and a
	// service manager may set one that shuts out every user but root.
	unix.Umask(0o022)
	runtime.GOMAXPROCS(min(runtime.GOMAXPROCS(0), processors))
	debug.SetMemoryLimit(memoryTarget)
	// A keeper outlives terminals and the readers of what it prints.
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGPIPE)
	connections, err := show(s.directory, s.reportFD)
	if err != nil {
		return err
	}
	k, err := newKeeper()
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	go k.poller.run(failed)
	go func() { failed <- k.serve(connections) }()
	go k.reaper.run()
	s.report(ready)
	return <-failed
}

func newKeeper() (*keeper, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, os.NewSyscallError("prctl PR_SET_CHILD_SUBREAPER", err)
	}
	version, err := programVersion("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	unified, err := hideUnified()
	if err != nil {
		return nil, err
	}
	polled, err := newPoller()
	if err != nil {
		return nil, err
	}
	reaper, err := newReaper()
	if err != nil {
		return nil, err
	}
	k := &keeper{
		version: version, cgroups: cgroups{unified}, seesStatus: canTrace(), reaper: reaper, poller: polled,
		slots:      make(chan struct{}, parallelLaunches),
		containers: map[string]*container{}, connections: map[*connection]struct{}{},
	}
	k.idle.L = &k.mu
	return k, nil
}

// programVersion returns what differs between any two programs.
func programVersion(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// canTrace reports whether this process has CAP_SYS_PTRACE.
func canTrace() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	err := unix.Capget(&header, &data[0])
	return err == nil && data[0].Effective&(1<<unix.CAP_SYS_PTRACE) != 0
}

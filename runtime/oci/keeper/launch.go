package keeper

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/internal/failpoint"
	"sandbox.internal/runtime/oci/thread"
)

// LaunchFailpoint is a failpoint of the keeper: it has begun a launch, and no process of the
// container runs.
const LaunchFailpoint = "keeper.launch"

const (
	// launchTimeout bounds a launch whose client has gone.
	launchTimeout = 2 * time.Minute
	// killTimeout is how long the end of a process that was killed is waited for.
	killTimeout = 10 * time.Second
)

// runtimeEnvironment is the environment of the runtime's commands.
var runtimeEnvironment = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}

// launch starts a container, or returns the one of this id that it has started before. after is
// called once the answer is queued.
func (k *keeper) launch(ctx context.Context, l *Launch) (c *container, files []int, after func()) {
	c = k.newContainer(&l.Watched)
	k.mu.Lock()
	if known := k.containers[l.ID]; known != nil {
		k.mu.Unlock()
		<-known.launched
		return known, known.share(), func() {}
	}
	k.containers[l.ID] = c
	k.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, launchTimeout)
	defer cancel()
	s := &start{keeper: k, container: c, launch: l}
	select {
	case k.slots <- struct{}{}:
		defer func() { <-k.slots }()
		s.err = s.run(ctx)
	case <-ctx.Done():
		s.err = &RuntimeError{Stage: StageOutput, Stderr: ctx.Err().Error()}
	}
	after = s.detach
	if s.err != nil {
		c.failure = s.err
		s.undo()
		k.drop(c)
		after = func() {}
	}
	close(c.launched)
	return c, s.files, after
}

// start is one launch while it is in progress.
type start struct {
	keeper    *keeper
	launch    *Launch
	container *container
	err       *RuntimeError

	mounted bool
	pid     int           // of the container's first process; 0 while it is not known
	ended   chan struct{} // closed when that has ended
	files   []int         // its pidfd and its FIFO, for the client
}

func (s *start) run(ctx context.Context) *RuntimeError {
	since, release := s.keeper.reaper.use()
	defer release()
	mounted := s.mount()
	defer mounted()
	output, exit, err := s.openOutput()
	defer closeAll(exit)
	if err != nil {
		return &RuntimeError{Stage: StageOutput, Stderr: err.Error()}
	}
	failpoint.Hit(LaunchFailpoint)
	if err := s.runtime(ctx, since, output, exit, mounted); err != nil {
		return err
	}
	if err := s.container.output.watch(); err != nil {
		return &RuntimeError{Stage: StageOutput, Stderr: err.Error()}
	}
	return nil
}

// mount mounts the container's root file system beside what else is made for it; wait waits for
// that, as often as it is called.
func (s *start) mount() (wait func() error) {
	if s.launch.Root == "" {
		return func() error { return nil }
	}
	done := make(chan error, 1)
	go func() { done <- s.launch.Overlay.Mount(s.launch.Root) }()
	return sync.OnceValue(func() error {
		err := <-done
		s.mounted = err == nil
		return err
	})
}

// openOutput makes what the container gets as descriptors. The caller closes exit.
func (s *start) openOutput() (output, exit int, err error) {
	output, exit = -1, -1
	// That of an earlier run may be held: its processes are gone, but may have given it to others.
	if info, err := os.Lstat(s.launch.Output); err == nil && info.Mode().Type() == os.ModeNamedPipe {
		if err := os.Remove(s.launch.Output); err != nil {
			return output, exit, err
		}
	}
	if err := unix.Mkfifo(s.launch.Output, 0o600); err != nil && !errors.Is(err, unix.EEXIST) {
		return output, exit, &os.PathError{Op: "mkfifo", Path: s.launch.Output, Err: err}
	}
	if err := os.Lchown(s.launch.Output, s.launch.Owner, s.launch.Owner); err != nil {
		return output, exit, err
	}
	fifo, err := openFIFO(s.launch.Output, unix.O_NONBLOCK)
	if err != nil {
		return output, exit, err
	}
	// Another open file: writers must wait for a full FIFO and not get EAGAIN. It is not closed
	// before the FIFO: the container could hold that, and have closed this.
	if output, err = openFIFO(s.launch.Output, 0); err != nil {
		closeAll(fifo) // no one else has it
		return output, exit, err
	}
	s.container.output.attach(fifo, output)
	if s.launch.ExitFile != "" {
		exit, err = unix.Open(s.launch.ExitFile, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return output, exit, &os.PathError{Op: "open", Path: s.launch.ExitFile, Err: err}
		}
		if _, err := unix.Pwrite(exit, []byte(exitFileBlank), 0); err != nil {
			return output, exit, &os.PathError{Op: "write", Path: s.launch.ExitFile, Err: err}
		}
	}
	// What is left of an earlier launch would be taken for this one's.
	for _, path := range []string{s.launch.PIDFile, s.launch.EndFile} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return output, exit, err
		}
	}
	return output, exit, nil
}

// runtime runs the runtime's command, whose output is the container's, once the root file system is
// mounted, and finds the container's first process.
func (s *start) runtime(ctx context.Context, since uint64, output, exit int, mounted func() error) *RuntimeError {
	input, err := endedInput()
	if err != nil {
		return failure(StageRun, 0, nil, err)
	}
	defer unix.Close(input)
	files := []uintptr{uintptr(input), uintptr(output), uintptr(output)}
	if exit >= 0 {
		files = append(files, uintptr(exit))
	}
	status, err := s.keeper.command(ctx, s.launch.Run, s.launch.Sealed, files, s.launch.CgroupDirectories, mounted)
	if err := mounted(); err != nil {
		return &RuntimeError{Stage: StageMount, Stderr: err.Error()}
	}
	if err == nil && status == 0 {
		err = s.findProcess(since)
	}
	if err == nil && status == 0 {
		return nil
	}
	return failure(StageRun, status, s.container.output.readAvailable(stderrBytes), err)
}

// endedInput returns the standard input of a container, which has nothing in it. It is not
// /dev/null: runtimes give the container's user what they find there, and in a user namespace the
// device is the host's.
func endedInput() (int, error) {
	var input [2]int
	if err := unix.Pipe2(input[:], unix.O_CLOEXEC); err != nil {
		return -1, os.NewSyscallError("pipe2", err)
	}
	unix.Close(input[1])
	return input[0], nil
}

func failure(stage Stage, status unix.WaitStatus, printed []byte, err error) *RuntimeError {
	e := &RuntimeError{Stage: stage, Stderr: string(bytes.ToValidUTF8(bytes.TrimSpace(printed), []byte("?")))}
	if status != 0 {
		e.ExitCode = newEnd(status, time.Time{}).ExitCode
	}
	if err != nil {
		if e.Stderr != "" {
			e.Stderr = ": " + e.Stderr
		}
		e.Stderr = err.Error() + e.Stderr
	}
	return e
}

// findProcess reads the process id that the runtime has written. The process may have ended, and
// have been waited for, by now.
func (s *start) findProcess(since uint64) error {
	data, err := os.ReadFile(s.launch.PIDFile)
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(data)))
	if err != nil || pid <= 1 {
		return &os.PathError{Op: "parse", Path: s.launch.PIDFile, Err: errors.New("no process id")}
	}
	process, err := s.openProcess(pid)
	if err != nil && !s.keeper.reaper.hasEnded(pid, since) {
		return err
	}
	s.pid, s.ended = pid, make(chan struct{})
	s.container.process = process
	c, k, ended := s.container, s.keeper, s.ended
	s.keeper.reaper.watch(pid, since, func(e exitEvent) {
		close(ended)
		go k.finish(c, newEnd(e.status, e.at))
	})
	return nil
}

// openProcess returns the process of the id, and opens what the client keeps of it. With an error
// only the id is known.
func (s *start) openProcess(pid int) (Process, error) {
	process := Process{PID: pid}
	found, err := becomesChild(pid)
	if err != nil {
		return process, err
	}
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return process, os.NewSyscallError("pidfd_open", err)
	}
	fifo := s.container.output.duplicate()
	if fifo < 0 {
		unix.Close(pidfd)
		return process, errors.New("no descriptor is left for the FIFO of the container")
	}
	s.files = []int{pidfd, fifo}
	process.StartTime = found.start
	return process, nil
}

// becomesChild waits until a process of the runtime that is about to end, and was the container's
// parent, has.
func becomesChild(pid int) (stat, error) {
	const patience = 5 * time.Second
	for deadline, pause := time.Now().Add(patience), 50*time.Microsecond; ; pause = min(2*pause, 5*time.Millisecond) {
		found, err := readStat(pid)
		if err != nil || found.parent == os.Getpid() {
			return found, err
		}
		if time.Now().After(deadline) {
			return found, errors.New("process " + strconv.Itoa(pid) + " of the container has another parent: " + strconv.Itoa(found.parent))
		}
		thread.Sleep(pause) // nothing reports it
	}
}

// undo removes what a failed launch has made, but for the FIFO and the runtime's own records.
func (s *start) undo() {
	if s.pid == 0 {
		s.killLeft()
	} else {
		s.keeper.reaper.kill(s.pid)
		select {
		case <-s.ended:
		case <-time.After(killTimeout):
		}
	}
	s.detach()
	closeAll(s.files...)
	s.files = nil
	s.container.output.close()
}

// killLeft kills the first process of a container whose create has failed or was killed, if it got
// that far.
func (s *start) killLeft() {
	data, err := os.ReadFile(s.launch.PIDFile)
	if err != nil {
		return
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(data)))
	if err != nil || pid <= 1 {
		return
	}
	if found, err := readStat(pid); err == nil && found.parent == os.Getpid() {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// detach takes the mount out of this mount namespace; that of the container keeps it.
func (s *start) detach() {
	if !s.mounted {
		return
	}
	s.mounted = false
	if err := unix.Unmount(s.launch.Root, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		s.keeper.report("container " + s.launch.ID + ": unmount " + s.launch.Root + ": " + err.Error())
	}
}

// command runs a command of the runtime in cgroups, once ready has returned nil, and returns how it
// ended. It is killed when ctx ends, and when this process does.
func (k *keeper) command(
	ctx context.Context, argv []string, sealed bool, files []uintptr, directories []string, ready func() error,
) (status unix.WaitStatus, err error) {
	if len(argv) == 0 || !filepath.IsAbs(argv[0]) {
		return 0, errors.New("the runtime's command line must begin with an absolute path")
	}
	// The command ends with the thread that has started it.
	if len(directories) == 0 {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		return k.commandHere(ctx, argv, sealed, files, nil, ready)
	}
	// The thread may move to cgroups of the container.
	thread.Run(func() { status, err = k.commandHere(ctx, argv, sealed, files, directories, ready) })
	return status, err
}

func (k *keeper) commandHere(
	ctx context.Context, argv []string, sealed bool, files []uintptr, directories []string, ready func() error,
) (unix.WaitStatus, error) {
	system := &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	for _, directory := range directories {
		fd, err := k.cgroups.enter(directory)
		if err != nil {
			return 0, err
		}
		if fd >= 0 {
			defer unix.Close(fd)
			system.UseCgroupFD, system.CgroupFD = true, fd
		}
	}
	program := argv[0]
	if sealed {
		if fd, err := k.programs.open(program); err == nil {
			defer unix.Close(fd)
			program = executable(fd)
		} else {
			k.report(program + ": it is loaded twice at every start: " + err.Error())
		}
	}
	if err := ready(); err != nil {
		return 0, err
	}
	pid, ended, err := k.reaper.start(program, slices.Clone(argv), &syscall.ProcAttr{Dir: "/", Env: runtimeEnvironment, Files: files, Sys: system})
	if err != nil {
		return 0, &os.PathError{Op: "start", Path: argv[0], Err: err}
	}
	select {
	case end := <-ended:
		return end.status, nil
	case <-ctx.Done():
		k.reaper.kill(pid)
		end := <-ended
		return end.status, context.Cause(ctx)
	}
}

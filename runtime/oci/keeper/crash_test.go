package keeper_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/keeper"
	"sandbox.internal/test/random"
	"sandbox.internal/test/wait"
)

// TestKeeperKilled kills the keeper while containers are started, run and end: no end and no output
// of a container that was started is lost.
func TestKeeperKilled(t *testing.T) {
	h := newHost(t)
	moments := random.New(t)
	const rounds = 200
	deadline := time.Now().Add(30 * time.Second)
	started, refused, round := 0, 0, 0
	for ; round < rounds && time.Now().Before(deadline); round++ {
		pause := moments.IntN(40_000) // µs
		l := h.container("round-"+strconv.Itoa(round), script(fmt.Sprintf("echo begins; usleep %d; seq 1 1000; exit %d", pause, round)))
		l.ExitFile = "" // the status must come from the kernel
		l.CgroupDirectories = []string{h.cgroup("round-" + strconv.Itoa(round))}
		killed := make(chan struct{})
		victim := h.client.PID()
		during := round%4 == 0 // the launch; else after it
		kill := func() {
			time.Sleep(time.Duration(moments.IntN(30_000)) * time.Microsecond) // the moment of the kill
			if victim != 0 {
				_ = unix.Kill(victim, unix.SIGKILL)
			}
			close(killed)
		}
		if during {
			go kill()
		}
		p, err := h.tryLaunch(l)
		if !during {
			go kill()
		}
		wait.For(t, "the kill", killed)
		if err != nil {
			if !during || !errors.Is(err, engine.ErrUnavailable) {
				t.Fatalf("round %d: %v", round, err)
			}
			refused++
			h.emptyCgroup(l.CgroupDirectories[0])
			continue
		}
		started++
		if end := h.end(l); end.ExitCode != round%256 || end.Signal != 0 {
			t.Errorf("round %d, process %d: end %+v, want exit code %d", round, p.PID, end, round%256)
		}
		if log := read(t, l.Log); strings.Count(log, "\n") != 1001 || !strings.HasSuffix(log, "\n1000\n") {
			t.Errorf("round %d: %d lines in the log, of %d bytes", round, strings.Count(log, "\n"), len(log))
		}
		if err := h.client.Forget(l.ID); err != nil {
			t.Errorf("round %d: %v", round, err)
		}
		h.emptyCgroup(l.CgroupDirectories[0])
	}
	t.Logf("%d rounds: %d containers started, %d launches cut off", round, started, refused)
	if started == 0 {
		t.Error("no container was started")
	}
}

// emptyCgroup ends and removes everything in a cgroup, as the service does with what a launch that
// was cut off has left.
func (h *host) emptyCgroup(directory string) {
	h.t.Helper()
	wait.Until(h.t, "the cgroup is removed", func() bool {
		for _, text := range strings.Fields(read(h.t, directory+"/cgroup.procs")) {
			if pid, err := strconv.Atoi(text); err == nil && pid > 0 {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		return os.Remove(directory) == nil
	})
}

// TestBothKilled: with neither service nor keeper there, the exit status is in the exit file; a
// process without one was killed.
func TestBothKilled(t *testing.T) {
	h := newHost(t)
	exits := h.container("exits", script("while [ ! -e /tmp/go ]; do usleep 1000; done; echo 9 >&3; exit 9"))
	killed := h.container("killed", script("exec sleep 1000"))
	recorded := h.container("recorded", script("exit 11"))
	runs := h.container("runs", script("while [ ! -e /tmp/go ]; do usleep 1000; done; echo ended; exit 12"))
	launches := []keeper.Launch{exits, killed, recorded, runs}
	var processes []keeper.Process
	for _, l := range launches {
		processes = append(processes, h.launch(l))
	}
	h.end(recorded)
	pid := h.client.PID()
	if err := h.client.Close(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	h.kill(processes[1])
	h.goOn(processes[0])
	wait.Until(h.t, "both have ended", func() bool { return !exists(processes[0]) && !exists(processes[1]) })

	h.mu.Lock()
	h.ends = map[string][]keeper.End{}
	h.mu.Unlock()
	h.open()
	if err := h.client.Adopt(t.Context(), running(launches, processes)); err != nil {
		t.Fatal(err)
	}
	h.goOn(processes[3])
	for i, want := range []keeper.End{{ExitCode: 9}, {ExitCode: 137, Signal: 9}, {ExitCode: 11}, {ExitCode: 12}} {
		if launches[i].ID == runs.ID && !keepsStatus(t) {
			h.end(runs) // the host's process 1 has waited for it, and nothing is left of its status
			continue
		}
		if end := h.end(launches[i]); end.ExitCode != want.ExitCode || end.Signal != want.Signal {
			t.Errorf("%s: end %+v, want %+v", launches[i].ID, end, want)
		}
	}
	if log := read(t, runs.Log); log != "ended\n" {
		t.Errorf("the log has %q", log)
	}
}

// keepsStatus reports whether this kernel keeps the exit status of a process for the holders of its
// pidfd (Linux 6.15).
func keepsStatus(t *testing.T) bool {
	t.Helper()
	pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	err = unix.IoctlPidfdInfo(pidfd, &info)
	if err != nil && !errors.Is(err, unix.ENOTTY) && !errors.Is(err, unix.ESRCH) {
		t.Fatal(err)
	}
	return !errors.Is(err, unix.ENOTTY)
}

// goOn makes the file /tmp/go in a container that runs.
func (h *host) goOn(p keeper.Process) {
	h.t.Helper()
	if err := os.WriteFile("/proc/"+strconv.Itoa(p.PID)+"/root/tmp/go", nil, 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// exists reports whether a process has not been waited for.
func exists(p keeper.Process) bool {
	start, err := keeper.ReadStart(p.PID)
	return err == nil && start == p.StartTime
}

// TestAdoptAgain: a service that was started again finds the ends of all its containers, of those
// that it has no record of, none.
func TestAdoptAgain(t *testing.T) {
	h := newHost(t)
	ended := h.container("ended", script("exit 21"))
	runs := h.container("runs", script("while [ ! -e /tmp/go ]; do usleep 1000; done; exit 22"))
	launches := []keeper.Launch{ended, runs}
	processes := []keeper.Process{h.launch(ended), h.launch(runs)}
	h.end(ended)
	pid := h.client.PID()
	if err := h.client.Close(); err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	h.ends = map[string][]keeper.End{}
	h.mu.Unlock()
	h.open()
	if h.client.PID() != pid {
		t.Errorf("keeper %d, want %d", h.client.PID(), pid)
	}
	for range 2 { // the second time there is nothing to do
		if err := h.client.Adopt(t.Context(), running(launches, processes)); err != nil {
			t.Fatal(err)
		}
	}
	h.goOn(processes[1])
	for i, want := range []int{21, 22} {
		if end := h.end(launches[i]); end.ExitCode != want {
			t.Errorf("end %+v, want %d", end, want)
		}
	}
}

// TestOneKeeper: of services that start at the same time one starts the keeper.
func TestOneKeeper(t *testing.T) {
	h := newHost(t)
	_ = h.client.Close()
	h.options.Directory += "-other"
	var services sync.WaitGroup
	clients := make([]*keeper.Client, 8)
	for i := range clients {
		services.Go(func() {
			var err error
			if clients[i], err = keeper.Open(t.Context(), h.options); err != nil {
				t.Error(err)
			}
		})
	}
	services.Wait()
	for _, client := range clients {
		if client == nil {
			continue
		}
		if client.PID() != clients[0].PID() {
			t.Errorf("keepers %d and %d", client.PID(), clients[0].PID())
		}
		_ = client.Close()
	}
}

// TestOtherVersion: a keeper of another program is replaced, and its containers are kept.
func TestOtherVersion(t *testing.T) {
	h := newHost(t)
	l := h.container("kept", script("while [ ! -e /tmp/go ]; do usleep 1000; done; echo ended; exit 31"))
	p := h.launch(l)
	pid := h.client.PID()
	h.replaceProgram(t)
	if h.client.PID() == pid {
		t.Fatal("the keeper was not replaced")
	}
	if err := h.client.Adopt(t.Context(), []keeper.Running{{Watched: l.Watched, Process: p}}); err != nil {
		t.Fatal(err)
	}
	h.goOn(p)
	if end := h.end(l); end.ExitCode != 31 {
		t.Errorf("end %+v", end)
	}
	if log := read(t, l.Log); log != "ended\n" {
		t.Errorf("log %q", log)
	}
}

// replaceProgram connects to a keeper of another program.
func (h *host) replaceProgram(t *testing.T) {
	t.Helper()
	_ = h.client.Close()
	data, err := os.ReadFile(keeperProgram)
	if err != nil {
		t.Fatal(err)
	}
	h.options.Program = filepath.Join(h.directory, "sandbox-keeper")
	if err := os.WriteFile(h.options.Program, append(data, "another version"...), 0o700); err != nil {
		t.Fatal(err)
	}
	h.open()
}

// TestIdleClient: a client that reads nothing holds up neither the keeper nor others.
func TestIdleClient(t *testing.T) {
	h := newHost(t)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	directory, err := os.Open(h.options.Directory)
	if err != nil {
		t.Fatal(err)
	}
	defer directory.Close()
	address := "/proc/self/fd/" + strconv.Itoa(int(directory.Fd())) + "/keeper.sock"
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: address}); err != nil {
		t.Fatal(err)
	}
	// Enough questions that the answers fill the socket.
	for range 5000 {
		if err := unix.Sendmsg(fd, []byte(`{"number":1,"operation":"hello"}`), nil, nil, unix.MSG_DONTWAIT); err != nil {
			break
		}
	}
	l := h.container("beside", script("exit 41"))
	h.launch(l)
	if end := h.end(l); end.ExitCode != 41 {
		t.Errorf("end %+v", end)
	}
}

// TestCloseWhileAKeeperIsReplaced: Close returns in whatever state the replacement is.
func TestCloseWhileAKeeperIsReplaced(t *testing.T) {
	h := newHost(t)
	moments := random.New(t)
	l := h.container("runs", script("exec sleep 1000"))
	p := h.launch(l)
	// Enough of them that the next keeper takes a while to adopt them.
	same := make([]keeper.Running, 500)
	for i := range same {
		same[i] = keeper.Running{Watched: l.Watched, Process: p}
		same[i].ID, same[i].EndFile = "same-"+strconv.Itoa(i), fmt.Sprintf("%s-%d", l.EndFile, i)
	}
	for round := range 10 {
		if err := h.client.Adopt(t.Context(), same); err != nil {
			t.Fatal(err)
		}
		victim := h.client.PID()
		h.killKeeper()
		wait.Until(h.t, "the loss is seen", func() bool { return h.client.PID() != victim })
		time.Sleep(time.Duration(moments.IntN(60_000)) * time.Microsecond) // the moment of the Close
		closed := make(chan error, 1)
		go func() { closed <- h.client.Close() }()
		if err := wait.For(t, fmt.Sprintf("the return of Close in round %d", round), closed); err != nil {
			t.Error(err)
		}
		h.open()
	}
}

// TestKeeperWithoutDescriptors accepts clients again once there are some, and does not spin until
// then.
func TestKeeperWithoutDescriptors(t *testing.T) {
	h := newHost(t)
	pid := h.client.PID()
	var limit unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: limit.Max}, nil); err != nil {
		t.Fatal(err)
	}
	before := cpuTime(t, pid)
	opened := make(chan error, 1)
	go func() {
		client, err := keeper.Open(t.Context(), h.options)
		if err == nil {
			err = client.Close()
		}
		opened <- err
	}()
	const watched = time.Second
	select {
	case err := <-opened:
		t.Fatalf("connected to a keeper without descriptors: %v", err)
	case <-time.After(watched):
	}
	if used := cpuTime(t, pid) - before; used > watched/10 {
		t.Errorf("the keeper has used %v of CPU time in %v", used, watched)
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &limit, nil); err != nil {
		t.Fatal(err)
	}
	if err := wait.For(t, "the connection", opened); err != nil {
		t.Error(err)
	}
	if got := h.client.PID(); got != pid {
		t.Errorf("the keeper was %d and is %d", pid, got)
	}
}

// cpuTime returns what a process has used.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	stat := read(t, "/proc/"+strconv.Itoa(pid)+"/stat")
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	ticks := 0
	for _, field := range fields[11:13] { // utime and stime, in hundredths of a second
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

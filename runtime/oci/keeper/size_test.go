package keeper_test

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/oci/keeper"
	"sandbox.internal/runtime/oci/thread"
	"sandbox.internal/test/wait"
)

// TestMemory: with 500 containers the keeper has at most 10 MiB resident.
func TestMemory(t *testing.T) {
	h := newHost(t)
	for i := range 20 { // what launches leave behind counts, too
		h.launch(h.container("launched-"+strconv.Itoa(i), script("echo some output; exec sleep 1000")))
	}
	atRest := resident(t, h.client.PID())
	const count = 500
	var running []keeper.Running
	for i := range count {
		id := strings.Repeat("f", 28) + strconv.Itoa(1000+i)
		directory := filepath.Join(h.directory, "adopted", id)
		if err := os.MkdirAll(directory, 0o700); err != nil {
			t.Fatal(err)
		}
		w := keeper.Watched{
			ID: id, Output: filepath.Join(directory, "output"), Log: filepath.Join(directory, "log"),
			ExitFile: filepath.Join(directory, "exit"), EndFile: filepath.Join(directory, "end.json"),
		}
		if err := unix.Mkfifo(w.Output, 0o600); err != nil {
			t.Fatal(err)
		}
		output, err := os.OpenFile(w.Output, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		command := wait.Command(t, "/bin/busybox", "sh", "-c", "echo begins; exec /bin/busybox sleep 1000")
		command.Stdout = output
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		output.Close()
		go func() { _ = command.Wait() }()
		start, err := keeper.ReadStart(command.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		process := keeper.Process{PID: command.Process.Pid, StartTime: start}
		running = append(running, keeper.Running{Watched: w, Process: process})
		h.mu.Lock()
		h.processes = append(h.processes, process)
		h.mu.Unlock()
	}
	if err := h.client.Adopt(t.Context(), running); err != nil {
		t.Fatal(err)
	}
	for _, r := range running {
		wait.Until(h.t, r.ID+" has printed", func() bool { return read(t, r.Log) == "begins\n" })
	}
	got := resident(t, h.client.PID())
	t.Logf("resident with 20 launched containers %d KiB, with %d more %d KiB", atRest, count, got)
	if got > 10<<10 {
		t.Errorf("%d KiB resident, want at most 10 MiB", got)
	}
}

// resident returns how much memory a process has resident, in KiB.
func resident(t *testing.T, pid int) int {
	t.Helper()
	for line := range strings.Lines(read(t, "/proc/"+strconv.Itoa(pid)+"/status")) {
		if text, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.Atoi(strings.Fields(text)[0])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

// BenchmarkLaunch measures Launch, without network and limits, next to the runtime's two commands
// alone.
func BenchmarkLaunch(b *testing.B) {
	h := newHost(b)
	var took, alone []time.Duration
	for i := 0; b.Loop(); i++ {
		l := h.container("bench-"+strconv.Itoa(i), script("exec sleep 1000"))
		began := time.Now()
		p := h.launch(l)
		took = append(took, time.Since(began))
		h.kill(p)
		h.end(l)
		if err := h.client.Forget(l.ID); err != nil {
			b.Fatal(err)
		}
		alone = append(alone, h.runtimeAlone(h.container("alone-"+strconv.Itoa(i), script("exec sleep 1000"))))
	}
	report(b, took, "launch")
	report(b, alone, "runtime")
}

func report(b *testing.B, took []time.Duration, what string) {
	slices.Sort(took)
	for name, at := range map[string]int{"min": 0, "p50": len(took) / 2, "p90": len(took) * 9 / 10} {
		b.ReportMetric(float64(took[at].Microseconds())/1000, what+"-"+name+"-ms")
	}
}

// runtimeAlone runs the runtime in a mount namespace of its own, where the overlay is mounted
// already, and returns how long it took.
func (h *host) runtimeAlone(l keeper.Launch) (took time.Duration) {
	h.t.Helper()
	var err error
	thread.Run(func() { // the mount namespace ends with the thread
		err = func() error {
			if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
				return err
			}
			if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
				return err
			}
			_ = unix.Unmount("/sys/fs/cgroup/unified", unix.MNT_DETACH) // if there is one; see hideUnified
			if err := l.Overlay.Mount(l.Root); err != nil {
				return err
			}
			began := time.Now()
			argv := slices.DeleteFunc(slices.Clone(l.Run), func(arg string) bool { return arg == "--preserve-fds" || arg == "1" })
			if err := wait.Command(h.t, argv[0], argv[1:]...).Run(); err != nil {
				return err
			}
			took = time.Since(began)
			return nil
		}()
	})
	if err != nil {
		h.t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(read(h.t, l.PIDFile)))
	if err != nil {
		h.t.Fatal(err)
	}
	start, err := keeper.ReadStart(pid)
	if err != nil {
		h.t.Fatal(err)
	}
	p := keeper.Process{PID: pid, StartTime: start}
	h.kill(p)
	h.mu.Lock()
	h.processes = append(h.processes, p)
	h.mu.Unlock()
	return took
}

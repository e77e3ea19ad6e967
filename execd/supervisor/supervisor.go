// Package supervisor is what the first process of a sidecar's container does: it keeps the container alive, starts the sidecar's program
// again when it dies, and reaps. It imports next to nothing, because it must not fail and there is one beside every sandbox.
package supervisor

import (
	"errors"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

const (
	longestPause = time.Second
	// settled is how long a program lives whose end is no reason to wait before the next start.
	settled = 10 * time.Second

	prSetChildSubreaper = 36 // prctl(2)
)

// Options say what Run starts.
type Options struct {
	// Name is the name of this program, for what it says.
	Name string
	// Program is the command line of the program; its first word is a path.
	Program []string
	// EnvReady is the variable that tells the program the descriptor to which it writes one byte when it works.
	EnvReady string
	// EnvRestarts is the variable that tells the program how often it had to be started again.
	EnvRestarts string
	// Meanwhile says what does not happen while the program is not there.
	Meanwhile string
}

// Run starts the program, again and again, until it is told to end by SIGTERM, SIGINT or SIGHUP, which it passes on; it returns the
// status for the container. When the program ends before it ever worked, Run returns its status: a sidecar that cannot work is seen at
// once.
//
// Processes that the program leaves behind become children of this one, which waits for them but does not end them. Run waits for all
// children of the process: nothing else in it may wait for one.
func Run(o Options) int {
	if len(o.Program) == 0 {
		o.say("usage: " + o.Name + " PROGRAM [ARGUMENT...]")
		return 2
	}
	s := &supervisor{Options: o, signals: make(chan os.Signal, 16), children: make(chan os.Signal, 1)}
	signal.Notify(s.signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	signal.Notify(s.children, syscall.SIGCHLD)
	defer signal.Stop(s.signals)
	defer signal.Stop(s.children)
	// Process 1 gets the orphans of its namespace anyway; in a namespace that containers share they come here only by asking.
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0); errno != 0 {
		o.say("orphaned processes will not come here: " + errno.Error())
	}
	everReady := false
	pause := time.Duration(0)
	for restarts := 0; ; restarts++ {
		began := time.Now()
		status, ready, stopped := s.once(restarts)
		everReady = everReady || ready
		if stopped || !everReady {
			return status
		}
		if time.Since(began) > settled {
			pause = 0
		}
		o.say("the program has ended with status " + strconv.Itoa(status) + "; it is started again, and " + o.Meanwhile + " until then")
		if !s.sleep(pause) {
			return 0
		}
		pause = min(longestPause, 2*pause+50*time.Millisecond)
	}
}

type supervisor struct {
	Options
	signals  chan os.Signal
	children chan os.Signal // one element stands for any number of children that ended
}

// once runs the program to its end. It returns its exit status, whether it said that it works, and whether it was told to stop.
func (s *supervisor) once(restarts int) (status int, ready, stopped bool) {
	reader, writer, err := os.Pipe()
	if err != nil {
		s.say(err.Error())
		return 1, false, false
	}
	defer reader.Close()
	pid, err := syscall.ForkExec(s.Program[0], s.Program, &syscall.ProcAttr{
		Env:   append(os.Environ(), s.EnvReady+"=3", s.EnvRestarts+"="+strconv.Itoa(restarts)),
		Files: []uintptr{0, 1, 2, writer.Fd()},
	})
	writer.Close()
	if err != nil {
		s.say("start " + s.Program[0] + ": " + err.Error())
		return 1, false, false
	}
	works := make(chan bool, 1)
	go func() {
		n, _ := reader.Read(make([]byte, 1))
		works <- n == 1
	}()
	for {
		select {
		case sig := <-s.signals:
			stopped = true
			// It has not been waited for, so the number is still its own.
			_ = syscall.Kill(pid, sig.(syscall.Signal))
		case <-s.children:
			if ended, waited := reap(pid); ended {
				return exitStatus(waited), <-works, stopped
			}
		}
	}
}

// sleep reports false when this process is told to stop meanwhile.
func (s *supervisor) sleep(pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return true
		case <-s.children:
			reap(0)
		case <-s.signals:
			return false
		}
	}
}

// reap waits for every child that has ended, and reports whether pid was among them.
func reap(pid int) (ended bool, status syscall.WaitStatus) {
	for {
		var one syscall.WaitStatus
		child, err := syscall.Wait4(-1, &one, syscall.WNOHANG, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil || child <= 0: // no child at all, or none that has ended
			return ended, status
		case child == pid:
			ended, status = true, one
		}
	}
}

func exitStatus(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

func (o Options) say(text string) { os.Stderr.WriteString(o.Name + ": " + text + "\n") }

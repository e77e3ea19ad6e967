// Command egress-init is process 1 of the egress sidecar. It keeps the network namespace alive, which ends with the container, and
// starts the guard again when it dies; nothing passes meanwhile. It imports next to nothing, because it must not fail and there is
// one beside every sandbox.
//
//	egress-init PROGRAM [ARGUMENT...]
//
// When the guard ends before its gate was ever open, egress-init ends with its status: a sidecar that cannot work is seen at once.
package main

import (
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

// Names of the variables for the guard; execd/cmd/egress and execd/egress/config know them too.
const (
	envReady    = "EGRESS_READY_FD"
	envRestarts = "EGRESS_RESTARTS"
)

const (
	longestPause = time.Second
	// settled is how long a guard lives whose end is no reason to wait before the next start.
	settled = 10 * time.Second
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	if len(args) == 0 {
		say("usage: egress-init PROGRAM [ARGUMENT...]")
		return 2
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	everReady := false
	pause := time.Duration(0)
	for restarts := 0; ; restarts++ {
		began := time.Now()
		status, ready, stopped := guard(args, restarts, signals)
		everReady = everReady || ready
		if stopped || !everReady {
			return status
		}
		if time.Since(began) > settled {
			pause = 0
		}
		say("the guard has ended with status " + strconv.Itoa(status) + "; it is started again, and nothing passes until then")
		select {
		case <-time.After(pause):
		case <-signals:
			return 0
		}
		pause = min(longestPause, 2*pause+50*time.Millisecond)
	}
}

// guard runs the program once. It returns its exit status, whether it said that the gate was open, and whether it was told to stop.
func guard(args []string, restarts int, signals <-chan os.Signal) (status int, ready, stopped bool) {
	reader, writer, err := os.Pipe()
	if err != nil {
		say(err.Error())
		return 1, false, false
	}
	defer reader.Close()
	process, err := os.StartProcess(args[0], args, &os.ProcAttr{
		Env:   append(os.Environ(), envReady+"=3", envRestarts+"="+strconv.Itoa(restarts)),
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr, writer},
	})
	writer.Close()
	if err != nil {
		say(err.Error())
		return 1, false, false
	}
	opened := make(chan bool, 1)
	go func() {
		n, _ := reader.Read(make([]byte, 1))
		opened <- n == 1
	}()
	ended := make(chan int, 1)
	go func() {
		state, err := process.Wait()
		if err != nil {
			ended <- 1
			return
		}
		if waited, ok := state.Sys().(syscall.WaitStatus); ok && waited.Signaled() {
			ended <- 128 + int(waited.Signal())
			return
		}
		ended <- state.ExitCode()
	}()
	for {
		select {
		case sig := <-signals:
			stopped = true
			// It fails when the guard has ended, which the next round sees.
			_ = process.Signal(sig)
		case status = <-ended:
			return status, <-opened, stopped
		}
	}
}

func say(text string) { os.Stderr.WriteString("egress-init: " + text + "\n") }

package supervisor

import (
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// lastSignal is the highest signal number of Linux on the architectures that we build for.
const lastSignal = syscall.Signal(64)

// signals are the channels on which this process gets its signals.
type signals struct {
	forward  chan os.Signal
	children chan os.Signal // one element stands for any number of children that ended
	pipe     chan os.Signal // never read
}

// notify takes over the signals that come before anything runs: of children, and those that end a
// container.
func notify() signals {
	s := signals{
		forward:  make(chan os.Signal, lastSignal),
		children: make(chan os.Signal, 1),
		pipe:     make(chan os.Signal, 1),
	}
	signal.Notify(s.children, syscall.SIGCHLD)
	// With its default action, SIGPIPE would end this process when the reader of its messages goes
	// away; ignored, it would be ignored in every child too.
	signal.Notify(s.pipe, syscall.SIGPIPE)
	signal.Notify(s.forward, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	return s
}

// notifyAll takes over every other signal that a container may get, real-time signals included:
// some programs stop by one. The Go runtime switches threads twice for each of them, 2 to 8 ms in
// all on two processors, so this is called where the process would wait.
func (s signals) notifyAll() {
	for sig := syscall.Signal(1); sig <= lastSignal; sig++ {
		switch sig {
		case syscall.SIGKILL, syscall.SIGSTOP: // cannot be caught
		case syscall.SIGCHLD, syscall.SIGPIPE, syscall.SIGURG: // about this process; the Go runtime sends SIGURG to itself
		default:
			signal.Notify(s.forward, sig)
		}
	}
}

func (s signals) stop() {
	signal.Stop(s.forward)
	signal.Stop(s.children)
	signal.Stop(s.pipe)
}

// The real-time signals that programs have names for: the C library keeps the two before them for
// itself.
const firstRealTime = syscall.Signal(34)

// ParseSignal reads a signal as images name it: QUIT, SIGQUIT, 3, SIGRTMIN+3, RTMAX-1. It returns 0
// for what is none, and for SIGSTOP, which ends nothing.
func ParseSignal(text string) syscall.Signal {
	if number, err := strconv.Atoi(text); err == nil {
		return endingSignal(syscall.Signal(number))
	}
	name := strings.TrimPrefix(strings.ToUpper(text), "SIG")
	for base, first := range map[string]syscall.Signal{"RTMIN": firstRealTime, "RTMAX": lastSignal} {
		if offset, ok := strings.CutPrefix(name, base); ok {
			n, err := strconv.Atoi(offset) // with its sign
			if err != nil && offset != "" || int(first)+n < int(firstRealTime) {
				return 0
			}
			return endingSignal(first + syscall.Signal(n))
		}
	}
	return endingSignal(unix.SignalNum("SIG" + name))
}

func endingSignal(sig syscall.Signal) syscall.Signal {
	if sig < 1 || sig > lastSignal || sig == syscall.SIGSTOP {
		return 0
	}
	return sig
}

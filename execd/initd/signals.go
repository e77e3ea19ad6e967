package initd

import (
	"os"
	"os/signal"
	"slices"

	"golang.org/x/sys/unix"
)

// lastSignal is the highest signal number of Linux on the architectures that we build for.
const lastSignal = unix.Signal(64)

// withheld returns the signals that are not forwarded: the first two cannot be caught, the others are about this
// process and not about the entrypoint (the Go runtime sends SIGURG to itself).
func withheld() []unix.Signal {
	return []unix.Signal{unix.SIGKILL, unix.SIGSTOP, unix.SIGCHLD, unix.SIGURG, unix.SIGPIPE}
}

// signals are the channels on which this process hears its signals.
type signals struct {
	forward  chan os.Signal
	children chan os.Signal // one element stands for any number of children that ended
	pipe     chan os.Signal // never read
}

// notify starts to listen. Every signal that somebody may send to the container reaches the entrypoint, real-time
// signals included: some programs are told to stop by one.
func notify() signals {
	s := signals{
		forward:  make(chan os.Signal, lastSignal),
		children: make(chan os.Signal, 1),
		pipe:     make(chan os.Signal, 1),
	}
	signal.Notify(s.children, unix.SIGCHLD)
	// Unheard, SIGPIPE would end this process when the reader of its log goes away; ignored, it would be ignored in
	// the entrypoint too.
	signal.Notify(s.pipe, unix.SIGPIPE)
	for sig := unix.Signal(1); sig <= lastSignal; sig++ {
		if !slices.Contains(withheld(), sig) {
			signal.Notify(s.forward, sig)
		}
	}
	return s
}

func (s signals) stop() {
	signal.Stop(s.forward)
	signal.Stop(s.children)
	signal.Stop(s.pipe)
}

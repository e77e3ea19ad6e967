package keeper

import (
	"errors"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/oci/thread"
)

const (
	// drainBytes is how much of one container's output is moved before it is another one's turn.
	drainBytes = 256 << 10
	// pipeBytes is more than a pipe can hold, unless the administrator has raised the limit
	// (pipe-max-size).
	pipeBytes = 16 << 20
	// outputPatience is how long the end of a container waits for its output.
	outputPatience = 2 * time.Second
	// openPatience is how long the adoption of a container waits for its FIFO to be opened.
	openPatience = 200 * time.Millisecond
)

// output moves what a container prints from its FIFO to its log.
//
// The container has the FIFO open as well, and can hold the kernel's lock of it for as long as it
// runs: by a splice(2) into it from a socket that nothing comes from, for example. Then every
// open(2) and read(2) of the FIFO, every splice(2) and the close(2) of its last descriptor wait for
// that lock, and neither O_NONBLOCK nor a signal ends the wait. So each of them may cost its
// thread, and nothing but another one of the same container waits for it without a bound. What is
// duplicated, polled or sent to another process takes no lock.
type output struct {
	poller *poller
	reaper *reaper

	turn sync.Mutex // held while something is done with the FIFO, or waits for it
	log  logFile    // of who has the turn
	free allowance  // of who has the turn

	mu       sync.Mutex // held for moments
	fifo     int        // -1 while it is not open; it is closed by who has the turn
	writer   int        // the open file that the container has, -1 of one that was adopted; closed with fifo
	finished bool       // the container has ended
	late     bool       // and what was left was not moved in time
	closed   bool
	dropped  bool // what is left in the FIFO is not to be in the log any more, which may be that of the next run
}

// attach sets the FIFO, and the open file of it that the container gets. Both are closed with the
// output.
func (o *output) attach(fifo, writer int) {
	o.mu.Lock()
	closed := o.closed
	if !closed {
		o.fifo, o.writer = fifo, writer
	}
	o.mu.Unlock()
	if closed {
		o.reaper.closeFIFOs(fifo, writer)
	}
}

// open opens the FIFO of a container that runs, and begins to move output. Its end waits for that
// as for the rest of the output.
func (o *output) open(path string) error {
	o.turn.Lock()
	fifo, err := openFIFO(path, unix.O_NONBLOCK)
	if err == nil {
		o.attach(fifo, -1)
	}
	o.turn.Unlock()
	if err == nil {
		err = o.watch()
	}
	return err
}

// watch begins to move output.
func (o *output) watch() (err error) {
	o.mu.Lock()
	finished := o.finished // it has taken longer to open the FIFO than the container has run
	if !finished && o.fifo >= 0 {
		err = o.poller.add(o.fifo, o.drain)
	}
	o.mu.Unlock()
	if finished {
		o.takeRest()
	}
	return err
}

// drain moves some output to the log.
func (o *output) drain() {
	if !o.turn.TryLock() {
		return // who has the turn looks again, or has ended this
	}
	var wait time.Duration
	if fifo, _ := o.current(); fifo >= 0 {
		// An error has no one to go to: the log stays shorter, and what follows is tried again.
		moved, _ := o.log.take(fifo, drainBytes)
		wait = o.free.spend(moved, time.Now())
	}
	o.turn.Unlock()
	if wait > 0 {
		time.AfterFunc(wait, o.rearm)
		return
	}
	o.rearm()
}

// rearm has the next output moved, if there is to be any.
func (o *output) rearm() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fifo >= 0 && !o.finished {
		o.poller.rearm(o.fifo)
	}
}

func (o *output) current() (fifo int, dropped bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.fifo, o.dropped
}

// takeRest moves what the FIFO has left to the log.
func (o *output) takeRest() {
	o.turn.Lock()
	defer o.turn.Unlock()
	if fifo, dropped := o.current(); fifo >= 0 && !dropped {
		_, _ = o.log.take(fifo, pipeBytes)
	}
	o.log.close()
}

// finish moves what the FIFO has left to the log, of a container that has ended. It returns when
// that is done, or will take longer because a process outside of the container, which has the FIFO
// from it, holds it.
//
// The FIFO stays open until close: clients have it, too, and must not be the last to close it.
func (o *output) finish() {
	o.end(false)
	if !within(outputPatience, o.takeRest) {
		o.mu.Lock()
		o.late = true
		o.mu.Unlock()
	}
}

// close ends the moving of output, with what the FIFO has left. It returns when that is done, or
// will take longer.
func (o *output) close() {
	patience := outputPatience
	if o.end(true) {
		patience = 0 // it was waited for
	}
	done := within(patience, func() {
		o.takeRest()
		o.turn.Lock()
		defer o.turn.Unlock()
		o.mu.Lock()
		fifo, writer := o.fifo, o.writer
		o.fifo, o.writer = -1, -1
		o.mu.Unlock()
		o.reaper.closeFIFOs(fifo, writer)
	})
	if !done {
		o.mu.Lock()
		o.dropped = true
		o.mu.Unlock()
	}
}

// end makes that no drain begins any more, and reports whether what is left was waited for in vain.
func (o *output) end(closed bool) (late bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.finished = true
	o.closed = o.closed || closed
	o.poller.remove(o.fifo)
	return o.late
}

// readAvailable returns what the FIFO holds now, at most max bytes of it, nothing when that takes
// too long.
func (o *output) readAvailable(max int) []byte {
	read := make(chan []byte, 1)
	within(outputPatience, func() {
		o.turn.Lock()
		defer o.turn.Unlock()
		if fifo, _ := o.current(); fifo >= 0 {
			read <- readAvailable(fifo, max)
		}
	})
	select {
	case printed := <-read:
		return printed
	default:
		return nil
	}
}

// duplicate returns another descriptor of the FIFO, for a client, -1 when there is none.
func (o *output) duplicate() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	copies := duplicate(o.fifo)
	if len(copies) == 0 {
		return -1
	}
	return copies[0]
}

// within calls a function that may take for ever, and reports whether it has returned in time.
func within(patience time.Duration, call func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		call()
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// closeFIFOs closes descriptors of FIFOs. It returns when no one holds these.
//
// A process that is being started has copies of all descriptors until it executes its program. It
// must not be the one that closes the last descriptor and waits: whoever starts processes waits for
// it. So a thread gets a table of its own with the descriptors, and closes them when none of the
// processes is left that were started while others had them, too.
func (r *reaper) closeFIFOs(files ...int) {
	files = slices.DeleteFunc(slices.Clone(files), func(fd int) bool { return fd < 0 })
	if len(files) == 0 {
		return
	}
	copied, alone, done := make(chan error), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		thread.Run(func() {
			copied <- r.copyTable(files)
			<-alone
			closeAll(files...)
		})
	}()
	if <-copied == nil { // else there is no memory for a table, and it closes these
		closeAll(files...)
		r.awaitStarts()
	}
	close(alone)
	<-done
}

// awaitStarts returns when no process is left that was being started before.
func (r *reaper) awaitStarts() {
	r.mu.Lock()
	defer r.mu.Unlock()
}

// copyTable gives this thread a table of descriptors of its own, with some, and with what Go needs.
func (r *reaper) copyTable(files []int) error {
	// Not while a process is started: it would be waited for until the pipe is closed here that it
	// closes by executing its program.
	r.mu.Lock()
	err := unix.Unshare(unix.CLONE_FILES)
	r.mu.Unlock()
	if err != nil {
		return err
	}
	first := uint(r.own)
	for _, fd := range slices.Sorted(slices.Values(files)) {
		if uint(fd) > first {
			_ = unix.CloseRange(first, uint(fd)-1, 0) // others miss nothing but when they are closed
		}
		first = max(first, uint(fd)+1)
	}
	_ = unix.CloseRange(first, math.MaxUint32, 0)
	return nil
}

// closeApart closes descriptors of which one may be the last of a FIFO. It is for clients, which
// rarely have it.
func closeApart(files ...int) {
	for _, fd := range files {
		if fd >= 0 {
			go unix.Close(fd)
		}
	}
}

// openFIFO opens a FIFO for reading and writing, so that it has both ends whatever other process is
// there.
func openFIFO(path string, flags int) (int, error) {
	fd, err := unix.Open(path, flags|unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	var info unix.Stat_t
	if err = unix.Fstat(fd, &info); err == nil && info.Mode&unix.S_IFMT != unix.S_IFIFO {
		err = errors.New("not a FIFO")
	}
	if err != nil {
		unix.Close(fd)
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

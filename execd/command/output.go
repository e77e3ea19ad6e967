package command

import (
	"bytes"
	"errors"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/execd/internal/eventlog"
)

const (
	// fragmentDelay is how long a piece of output without a newline waits for the rest of its line
	// before it is shown as a fragment.
	fragmentDelay = 20 * time.Millisecond
	// runeDelay is how long the first bytes of a UTF-8 sequence wait for the others. What is shown
	// without them is no character.
	runeDelay = time.Second
	// maxKept bounds what an output keeps for fragments to come.
	maxKept = 4 << 10
)

// buffers are what pipes are read into. They are held only while something is read: thousands of
// commands may wait.
var buffers = sync.Pool{New: func() any { return new([eventlog.MaxFragment]byte) }}

// output is the reading end of what a process writes to. It belongs to whoever serves the run.
type output struct {
	stream eventlog.Type
	wait   time.Duration // for the rest of a UTF-8 sequence
	fd     int           // -1 once closed
	log    *eventlog.Log // nil once the command has ended: what still comes is thrown away
	late   func()        // reports that a fragment is due
	held   []byte        // the beginning of a line, less than eventlog.MaxFragment bytes
	since  time.Time     // when the first held byte came
	timer  *time.Timer   // calls late; nil before something was held for the first time
	rings  time.Time     // when the timer does; zero when it does not run

	postponed bool // it is among the poller's leftovers
}

// readResult is what came of one attempt to read.
type readResult int

const (
	readSome  readResult = iota // there may be more
	readNone                    // nothing is there now
	readEnded                   // no process has the pipe open for writing any more
)

// read reads once, at most limit bytes, and records what came.
func (o *output) read(limit int) (int, readResult) {
	buffer := buffers.Get().(*[eventlog.MaxFragment]byte)
	defer buffers.Put(buffer)
	held := copy(buffer[:], o.held)
	for {
		n, err := syscall.Read(o.fd, buffer[held:min(held+limit, eventlog.MaxFragment)])
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EAGAIN):
			return 0, readNone
		case n <= 0:
			return 0, readEnded
		}
		if o.log != nil {
			o.take(buffer[:held+n], held)
		}
		return n, readSome
	}
}

// take records the complete lines among what was held and what came behind it, and holds the rest.
func (o *output) take(data []byte, held int) {
	fresh := held == 0
	if newline := bytes.LastIndexByte(data[held:], '\n'); newline >= 0 {
		end := held + newline + 1
		o.log.Output(o.stream, data[:end], false)
		data, fresh = data[end:], true
	}
	if len(data) == eventlog.MaxFragment {
		n := eventlog.WholeRunes(data)
		o.log.Output(o.stream, data[:n], true)
		data, fresh = data[n:], true
	}
	o.hold(data, fresh)
}

// hold keeps the beginning of a line. It is fresh when its first byte has come just now.
func (o *output) hold(data []byte, fresh bool) {
	if cap(o.held) > maxKept && len(data) <= maxKept {
		o.held = nil
	}
	waited := eventlog.WholeRunes(o.held) == 0
	o.held = append(o.held[:0], data...)
	now := time.Now()
	if fresh || waited && eventlog.WholeRunes(o.held) > 0 {
		o.since = now
	}
	if len(o.held) > 0 {
		o.wake(now, o.since.Add(o.delay()))
	}
}

// delay is how long what is held waits for what belongs to it.
func (o *output) delay() time.Duration {
	if eventlog.WholeRunes(o.held) == 0 {
		return o.wait
	}
	return fragmentDelay
}

// wake has the timer report at a time that a fragment is due. A timer that rings before is left
// alone: when it comes too early it is set again, which is far less often than once for every read.
func (o *output) wake(now, at time.Time) {
	if !o.rings.IsZero() && !o.rings.After(at) {
		return
	}
	o.rings = at
	if o.timer == nil {
		o.timer = time.AfterFunc(at.Sub(now), o.late)
		return
	}
	o.timer.Reset(at.Sub(now))
}

// due shows what is held as a fragment if it is old enough.
func (o *output) due() {
	o.rings = time.Time{}
	if o.log == nil || len(o.held) == 0 {
		return
	}
	now, at := time.Now(), o.since.Add(o.delay())
	if at.After(now) {
		o.wake(now, at)
		return
	}
	n := eventlog.WholeRunes(o.held)
	if n == 0 {
		n = len(o.held)
	}
	o.log.Output(o.stream, o.held[:n], true)
	o.hold(o.held[n:], true)
}

// waiting returns how many bytes are in the pipe now.
func (o *output) waiting() int {
	if o.fd < 0 {
		return 0
	}
	n, err := unix.IoctlGetInt(o.fd, unix.TIOCINQ)
	if err != nil {
		return 0
	}
	return n
}

// finish records what is in the pipe now, which is all that an ended process itself wrote, and what
// is held. From then on what comes is thrown away.
func (o *output) finish() {
	for left := o.waiting(); left > 0; {
		n, result := o.read(left)
		if result != readSome {
			break
		}
		left -= n
	}
	o.log.Output(o.stream, o.held, true)
	o.log, o.held = nil, nil
	if o.timer != nil {
		o.timer.Stop()
	}
}

func (o *output) close() {
	if o.fd >= 0 {
		syscall.Close(o.fd) // only read from: nothing can be lost by an error here
		o.fd = -1
	}
}

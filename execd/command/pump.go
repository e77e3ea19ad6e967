package command

import (
	"bytes"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"sandbox.internal/execd/eventlog"
)

// fragmentDelay is how long a piece of output without a newline waits for the rest of its line before it is shown as a fragment.
const fragmentDelay = 20 * time.Millisecond

// maxFragment is the longest line that is shown in one event; a longer one comes in fragments.
const maxFragment = 64 << 10

// firstBuffer is what a pump starts with; most commands say little.
const firstBuffer = 4 << 10

// firstBuffers are shared by all pumps: one that waits and holds nothing has no buffer, because a thousand silent commands may run
// at once.
var firstBuffers = sync.Pool{New: func() any { return new([firstBuffer]byte) }}

// pump moves what a process writes to one pipe into its log.
//
// The end of a command is the end of its process, not of the pipe: a grandchild may keep the pipe open for ever. So when the
// process has ended, the pump takes what is in the pipe at that moment, which is all that the process itself wrote, and is done.
// After that it reads on and throws away, because a grandchild that writes to a closed pipe would be killed.
type pump struct {
	log    *eventlog.Log
	stream eventlog.Type
	pipe   *os.File
	done   chan struct{} // closed when everything that the process wrote is in the log

	mu    sync.Mutex
	ended bool // the process has; the read deadline is no longer ours to move

	buffer []byte // nil while nothing is held; what is held begins at 0 and has no newline
	held   int
	since  time.Time // when the first held byte came
}

func newPump(log *eventlog.Log, stream eventlog.Type, pipe *os.File) *pump {
	p := &pump{log: log, stream: stream, pipe: pipe, done: make(chan struct{})}
	go p.run()
	return p
}

// end tells the pump that the process has ended, and returns when what it wrote is in the log.
func (p *pump) end() {
	p.mu.Lock()
	p.ended = true
	p.pipe.SetReadDeadline(time.Unix(1, 0)) // wakes the reader; an error means that it has come to the end already
	p.mu.Unlock()
	<-p.done
}

func (p *pump) run() {
	defer p.pipe.Close() // only read from: nothing can be lost by an error here
	for {
		p.setDeadline()
		n, err := p.read()
		if n > 0 {
			p.take(n)
		}
		switch {
		case err == nil:
			continue
		case !errors.Is(err, os.ErrDeadlineExceeded):
			p.finish()
			return
		case p.hasEnded():
			p.drain()
			p.finish()
			p.discard()
			return
		case p.held > 0:
			p.flush(p.wholeRunes())
		}
	}
}

// read reads what comes next behind what is held. It has a buffer only from the moment on at which there is something to read.
func (p *pump) read() (n int, err error) {
	connection, err := p.pipe.SyscallConn()
	if err != nil {
		return 0, err
	}
	waitErr := connection.Read(func(fd uintptr) (ready bool) {
		p.borrow()
		for {
			n, err = syscall.Read(int(fd), p.buffer[p.held:])
			switch {
			case errors.Is(err, syscall.EINTR):
				continue
			case errors.Is(err, syscall.EAGAIN):
				p.giveBack()
				return false
			}
			return true
		}
	})
	if waitErr != nil {
		return 0, waitErr
	}
	if err == nil && n == 0 {
		err = io.EOF
	}
	return max(n, 0), err
}

func (p *pump) borrow() {
	if p.buffer == nil {
		p.buffer = firstBuffers.Get().(*[firstBuffer]byte)[:]
	}
}

// giveBack lets go of the buffer, unless it is in use. One that has grown stays: its command says much.
func (p *pump) giveBack() {
	if p.held == 0 && len(p.buffer) == firstBuffer {
		firstBuffers.Put((*[firstBuffer]byte)(p.buffer))
		p.buffer = nil
	}
}

func (p *pump) hasEnded() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

func (p *pump) setDeadline() {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.ended:
	case p.held > 0:
		p.pipe.SetReadDeadline(p.since.Add(fragmentDelay))
	case !p.since.IsZero():
		p.since = time.Time{}
		p.pipe.SetReadDeadline(time.Time{})
	}
}

// take records the complete lines among what is held and the n new bytes behind it, and holds the rest.
func (p *pump) take(n int) {
	size := p.held + n
	full := size == len(p.buffer)
	if newline := bytes.LastIndexByte(p.buffer[p.held:size], '\n'); newline >= 0 {
		end := p.held + newline + 1
		p.log.Output(p.stream, p.buffer[:end], false)
		copy(p.buffer, p.buffer[end:size])
		size -= end
		p.held = 0
	}
	if size > 0 && p.held == 0 {
		p.since = time.Now()
	}
	p.held = size
	switch {
	case full && len(p.buffer) < maxFragment:
		larger := make([]byte, min(4*len(p.buffer), maxFragment))
		copy(larger, p.buffer[:p.held])
		p.buffer = larger
	case p.held == len(p.buffer):
		p.flush(p.wholeRunes())
	}
}

// flush records the first n held bytes as a fragment.
func (p *pump) flush(n int) {
	p.log.Output(p.stream, p.buffer[:n], true)
	copy(p.buffer, p.buffer[n:p.held])
	p.held -= n
	p.since = time.Now()
}

// wholeRunes returns how many of the held bytes to show now: all, but for a UTF-8 sequence at their end whose rest may still come.
func (p *pump) wholeRunes() int {
	for back := 1; back < utf8.UTFMax && back < p.held; back++ {
		if b := p.buffer[p.held-back]; utf8.RuneStart(b) {
			if b >= utf8.RuneSelf && !utf8.FullRune(p.buffer[p.held-back:p.held]) {
				return p.held - back
			}
			break
		}
	}
	return p.held
}

// drain takes what is in the pipe now and does not wait for more.
func (p *pump) drain() {
	connection, err := p.pipe.SyscallConn()
	if err != nil {
		return
	}
	connection.Control(func(fd uintptr) {
		left, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
		for err == nil && left > 0 {
			p.borrow()
			var n int
			end := min(len(p.buffer), p.held+left)
			n, err = syscall.Read(int(fd), p.buffer[p.held:end])
			if errors.Is(err, syscall.EINTR) {
				err = nil
				continue
			}
			if n <= 0 {
				return
			}
			left -= n
			p.take(n)
		}
	})
}

// finish records what is still held: no more can follow.
func (p *pump) finish() {
	p.flush(p.held)
	p.giveBack()
	close(p.done)
}

func (p *pump) discard() {
	p.pipe.SetReadDeadline(time.Time{})
	for {
		if _, err := p.read(); err != nil {
			return
		}
	}
}

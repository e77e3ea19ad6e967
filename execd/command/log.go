package command

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync"
	"time"
)

// Log is the append-only record of everything that one command said: its init event, every byte of its output, its end.
// Writers never wait for readers. Any number of readers follow it, each from where it likes; what they read never changes.
//
// The log is a sequence of frames: a header and what one read of a pipe brought, either complete lines or one fragment
// of a line. Events and lines are counted per frame and told apart only when somebody reads, so that writing costs one copy.
type Log struct {
	limit int64 // bytes of output kept
	clock func() time.Time

	mu      sync.Mutex
	spool   spool
	marks   []position // where frames begin, about every markDistance bytes
	end     position
	open    bool  // output ends in the middle of a line
	output  int64 // bytes of output appended
	dropped int64 // bytes of output beyond the limit
	spoil   error // why output could not be kept before the limit was reached
	exit    *Exit // set by finish
	more    chan struct{}
}

// position is a place between two frames: its offset in the spool, and how many events and newlines of output lie before it.
type position struct {
	offset, events, lines int64
}

type frame struct {
	kind    Type
	partial bool
	time    int64 // Unix milliseconds
	events  int64
	lines   int64 // newlines in an output payload
	payload []byte
}

const (
	headerSize   = 24
	maxPayload   = 64 << 10
	markDistance = 64 << 10
)

// kinds gives every event type that is stored its byte in a frame's header.
var kinds = []Type{TypeInit, TypeStatus, TypeStdout, TypeStderr, TypeComplete, TypeError}

func newLog(limit int64, spoolDir string, clock func() time.Time) *Log {
	return &Log{limit: limit, spool: spool{dir: spoolDir}, marks: []position{{}}, clock: clock}
}

// appendOutput records what a stream brought: complete lines, or one fragment without a newline when partial is set.
func (l *Log) appendOutput(stream Type, payload []byte, partial bool) {
	if len(payload) == 0 {
		return
	}
	events, lines := int64(1), int64(0)
	if !partial {
		lines = int64(bytes.Count(payload, []byte{'\n'}))
		events = lines
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dropped > 0 || l.spoil != nil || l.output+int64(len(payload)) > l.limit {
		l.drop(int64(len(payload)))
		return
	}
	err := l.append(frame{kind: stream, partial: partial, events: events, lines: lines, payload: payload})
	if err != nil {
		l.spoil = err
		l.drop(int64(len(payload)))
		return
	}
	l.output += int64(len(payload))
	l.open = partial
}

// drop counts output that is not kept. The first time it says so in the stream, at the place where the output is cut.
func (l *Log) drop(size int64) {
	if l.dropped == 0 {
		text := fmt.Sprintf("output is cut here: %d bytes are kept, the limit is %d", l.output, l.limit)
		if l.spoil != nil {
			text = fmt.Sprintf("output is cut here after %d bytes: it cannot be stored: %v", l.output, l.spoil)
		}
		l.appendText(TypeStatus, text)
	}
	l.dropped += size
}

// begin records the init event.
func (l *Log) begin(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.appendText(TypeInit, id)
}

// finish records the terminal event. Nothing is appended after it.
func (l *Log) finish(exit Exit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dropped > 0 {
		l.appendText(TypeStatus, fmt.Sprintf("%d bytes of output were cut", l.dropped))
	}
	l.exit = &exit
	l.appendText(exit.Type(), "")
}

// appendText records one event of our own. It fits into the memory that the spool keeps back for such frames, so it cannot fail.
func (l *Log) appendText(kind Type, text string) {
	if err := l.append(frame{kind: kind, events: 1, payload: []byte(text)}); err != nil {
		panic(err)
	}
}

func (l *Log) append(f frame) error {
	var header [headerSize]byte
	for i, kind := range kinds {
		if kind == f.kind {
			header[0] = byte(i)
		}
	}
	if f.partial {
		header[1] = 1
	}
	binary.LittleEndian.PutUint32(header[4:], uint32(len(f.payload)))
	binary.LittleEndian.PutUint64(header[8:], uint64(l.clock().UnixMilli()))
	binary.LittleEndian.PutUint32(header[16:], uint32(f.events))
	binary.LittleEndian.PutUint32(header[20:], uint32(f.lines))
	output := f.kind == TypeStdout || f.kind == TypeStderr
	if err := l.spool.append(header[:], f.payload, output); err != nil {
		return err
	}
	if l.end.offset-l.marks[len(l.marks)-1].offset >= markDistance {
		l.marks = append(l.marks, l.end)
	}
	l.end.offset += headerSize + int64(len(f.payload))
	l.end.events += f.events
	l.end.lines += f.lines
	if l.more != nil {
		close(l.more)
		l.more = nil
	}
	return nil
}

func parseHeader(header []byte) (f frame, size int) {
	f.kind = kinds[header[0]]
	f.partial = header[1] == 1
	f.time = int64(binary.LittleEndian.Uint64(header[8:]))
	f.events = int64(binary.LittleEndian.Uint32(header[16:]))
	f.lines = int64(binary.LittleEndian.Uint32(header[20:]))
	return f, int(binary.LittleEndian.Uint32(header[4:]))
}

// wait returns a channel that is closed as soon as the log holds more than offset bytes, and nil when it does already.
func (l *Log) wait(offset int64) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.end.offset > offset {
		return nil
	}
	if l.more == nil {
		l.more = make(chan struct{})
	}
	return l.more
}

// snapshot returns the log's end and, once the command has ended, how.
func (l *Log) snapshot() (position, *Exit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end, l.exit
}

// held returns how many bytes the log holds in memory and in a file.
func (l *Log) held() (memory, disk int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.spool.memory, l.spool.fileEnd
}

// mark returns the last known place for which before holds; before must be true up to some place and false from there on.
func (l *Log) mark(before func(position) bool) position {
	l.mu.Lock()
	defer l.mu.Unlock()
	low, high := 0, len(l.marks)
	for high-low > 1 {
		if middle := (low + high) / 2; before(l.marks[middle]) {
			low = middle
		} else {
			high = middle
		}
	}
	return l.marks[low]
}

// close releases what the log holds on disk. Readers that still follow it get an error.
func (l *Log) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spool.close()
}

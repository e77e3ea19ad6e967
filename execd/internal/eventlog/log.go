// Package eventlog is the append-only record behind every stream of execd: what a command or a cell
// said, from its first event to its last.
//
// Writers never wait for readers. Any number of readers follow a log, each from where it likes;
// what they read never changes.
package eventlog

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sort"
	"sync"
	"time"
)

// Log is the record of everything that one command or cell said: its init event, every byte of its
// output, its end.
//
// The log is a sequence of frames: a header and what one read of a pipe brought, either complete
// lines or one fragment of a line. Events and lines are counted per frame and separated only when a
// reader asks, so that writing costs one copy.
//
// It is to be used from Start on, and not to be copied. All that a log of a few lines needs is in
// it: a log is kept for long, and what is kept should not lie in many pieces among what is not,
// because memory goes back to the system in whole pages.
type Log struct {
	limit  int64 // bytes of output kept
	beside int64 // bytes that the owner holds
	clock  func() time.Time

	mu      sync.Mutex
	spool   spool
	marks   []position // where frames begin, about every markDistance bytes, but for the first
	end     position
	open    bool  // output ends in the middle of a line
	output  int64 // bytes of output appended
	dropped int64 // bytes of output beyond the limit
	keepErr error // why output could not be kept before the limit was reached
	ended   bool  // the terminal event is in
	more    chan struct{}
}

// position is a place between two frames: its offset in the spool, and how many events and newlines
// of output lie before it.
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

// kinds gives every event type its byte in a frame's header.
var kinds = []Type{TypeInit, TypeStatus, TypeStdout, TypeStderr, TypeResult, TypeCount, TypeComplete, TypeError, TypeDisplay}

// Options configures a Log.
type Options struct {
	// Limit is how many bytes of output are kept. Bytes beyond it are counted and reported in a
	// status event.
	Limit int64
	// SpoolDir is where output goes that does not fit into memory; empty means wherever a temporary
	// file can be made.
	SpoolDir string
	// Memory bounds what the log and others hold in memory until they end; nil means that only the
	// log's own bound counts.
	Memory *Memory
	// Beside is how many bytes its owner holds in memory for as long as the log is kept: they count
	// as the log's.
	Beside int64
	Clock  func() time.Time
}

// New returns a log that has been started.
func New(id string, options Options) *Log {
	l := new(Log)
	l.Start(id, options)
	return l
}

// Start begins the zero Log with an init event, which carries the id.
func (l *Log) Start(id string, options Options) {
	l.limit, l.beside, l.clock = options.Limit, options.Beside, options.Clock
	l.spool.dir, l.spool.shared = options.SpoolDir, options.Memory
	l.appendOwn(frame{kind: TypeInit, payload: []byte(id)})
}

// Output records what a stream brought: complete lines, or one fragment without a newline when
// partial is set.
func (l *Log) Output(stream Type, payload []byte, partial bool) {
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
	if l.keep(frame{kind: stream, partial: partial, events: events, lines: lines, payload: payload}) {
		l.open = partial
	}
}

// Event records one event with its detail, which counts as output.
func (l *Log) Event(kind Type, detail []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keep(frame{kind: kind, events: 1, payload: detail})
}

// keep appends output, unless output has been cut before or has to be now.
func (l *Log) keep(f frame) bool {
	size := int64(len(f.payload))
	if l.dropped > 0 || l.keepErr != nil || l.output+size > l.limit {
		l.drop(size)
		return false
	}
	if err := l.append(f); err != nil {
		l.keepErr = err
		l.drop(size)
		return false
	}
	l.output += size
	return true
}

// drop counts output that is not kept. The first time it says so in the stream, at the place where
// the output is cut.
func (l *Log) drop(size int64) {
	if l.dropped == 0 {
		text := fmt.Sprintf("output is cut here: %d bytes are kept, the limit is %d", l.output, l.limit)
		if l.keepErr != nil {
			text = fmt.Sprintf("output is cut here after %d bytes: it cannot be stored: %v", l.output, l.keepErr)
		}
		l.appendOwn(frame{kind: TypeStatus, payload: []byte(text)})
	}
	l.dropped += size
}

// Finish records the terminal event: TypeComplete or TypeError. Events after it are dropped.
func (l *Log) Finish(kind Type, detail []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dropped > 0 {
		l.appendOwn(frame{kind: TypeStatus, payload: fmt.Appendf(nil, "%d bytes of output were cut", l.dropped)})
	}
	l.ended = true
	l.appendOwn(frame{kind: kind, payload: detail})
	l.spool.leave()
}

// appendOwn records an event of the daemon itself. The spool keeps such frames in memory when
// nothing else takes them, so it cannot fail.
func (l *Log) appendOwn(f frame) {
	f.events = 1
	if err := l.append(f); err != nil {
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
	if err := l.spool.append(header[:], f.payload, f.isOutput()); err != nil {
		return err
	}
	last := position{}
	if len(l.marks) > 0 {
		last = l.marks[len(l.marks)-1]
	}
	if l.end.offset-last.offset >= markDistance {
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

// closed is for readers that need not wait. It is not nil, from which a select statement would
// never receive.
var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// wait returns a channel that is closed once the log holds more than offset bytes.
func (l *Log) wait(offset int64) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.end.offset > offset {
		return closed
	}
	if l.more == nil {
		l.more = make(chan struct{})
	}
	return l.more
}

// Held returns how many bytes the log and its owner hold in memory, and the log in a file.
func (l *Log) Held() (memory, disk int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.spool.memory + l.beside, l.spool.fileEnd
}

// MayBlock reports whether recording may have to wait for a disk. As long as it does not, half of
// what fits into memory is left, which is room for several reads of pipes.
func (l *Log) MayBlock() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.spool.file != nil || l.spool.memory > memoryLimit/2 || l.spool.shared.exceeds(MaxMemory/2)
}

// mark returns the last known place for which before holds; before must be true up to some place
// and false from there on.
func (l *Log) mark(before func(position) bool) position {
	l.mu.Lock()
	defer l.mu.Unlock()
	after := sort.Search(len(l.marks), func(i int) bool { return !before(l.marks[i]) })
	if after == 0 {
		return position{}
	}
	return l.marks[after-1]
}

// Close releases what the log holds on disk. Readers that still follow it get an error.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spool.close()
}

// Package activity keeps a list of the operations that clients have done in a sandbox, and do. Any
// number of readers follow it.
//
// The package uses no HTTP. A reader holds a cursor alone, and gets each entry that has changed
// after it, as the entry is then, so no operation waits for a reader. The list is bounded in
// entries and in bytes.
package activity

import (
	"container/list"
	"context"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

// What is kept at most.
const (
	maxEntries = 1000
	maxBytes   = 1 << 20
	// overhead is what an entry takes beside its texts, in bytes.
	overhead = 384

	maxText  = 4 << 10
	maxName  = 128
	maxError = 512
)

// Kind is what an entry is about.
type Kind string

// The kinds of entries.
const (
	Command  Kind = "command"
	Code     Kind = "code"
	Terminal Kind = "terminal"
	Upload   Kind = "upload"
	Download Kind = "download"
	Delete   Kind = "delete"
	Move     Kind = "move"
	Replace  Kind = "replace"
	Mkdir    Kind = "mkdir"
	Chmod    Kind = "chmod"
)

// State is how far an operation is.
type State string

// The states of an operation.
const (
	Running   State = "running"
	Succeeded State = "succeeded"
	Failed    State = "failed"
)

// Caller is who asked for an operation.
type Caller struct {
	Key    string // the name of the service's API key; empty when none is known
	Client string // the client's own name for itself, of its User-Agent; may be empty
}

// Result is how an operation ended.
type Result struct {
	Failed bool
	Exit   *int   // the exit code, nil when there is none
	Error  string // why it failed
}

// Entry is an operation as it is at one time.
type Entry struct {
	Caller
	ID        int64
	Kind      Kind
	Operation string // the id of what runs; empty for operations on files
	Text      string // a command line, code or paths; UTF-8
	Truncated bool   // the end of Text is left out
	State     State
	Exit      *int
	Error     string
	Started   time.Time
	Ended     time.Time // zero while it runs

	// Change is the position of the entry's last change among all changes: the cursor after it.
	Change int64
}

func (e *Entry) size() int {
	return overhead + len(e.Operation) + len(e.Text) + len(e.Key) + len(e.Client) + len(e.Error)
}

// Log is the list.
type Log struct {
	clock func() time.Time

	mu      sync.Mutex
	last    int64     // the position of the last change
	entries list.List // of *Operation, in the order of their last changes
	bytes   int
	changed chan struct{} // closed and replaced at a change; nil when nothing waits
}

// New returns an empty list. Positions go on after those of an earlier process, as long as the
// clock does.
func New(clock func() time.Time) *Log { return &Log{clock: clock, last: clock().UnixMicro()} }

// Operation is an operation on its way into the list.
type Operation struct {
	log   *Log
	entry Entry
	at    *list.Element // nil before it began, and when the list has forgotten it
}

// Prepare returns an operation that is not in the list before [Operation.Begin].
func (l *Log) Prepare(kind Kind, by Caller) *Operation {
	by.Key, _ = Shorten(printable(by.Key), maxName)
	by.Client, _ = Shorten(printable(by.Client), maxName)
	return &Operation{log: l, entry: Entry{Caller: by, Kind: kind, State: Running}}
}

// Begin puts the operation into the list. id is that of what runs, empty for none.
func (o *Operation) Begin(id, text string) {
	l := o.log
	text, truncated := Shorten(text, maxText)
	l.mu.Lock()
	defer l.mu.Unlock()
	o.entry.Operation, _ = Shorten(id, maxName)
	o.entry.Text, o.entry.Truncated = text, truncated
	o.entry.Started = l.clock()
	if o.entry.State != Running { // it ended before it was known
		o.entry.Started = o.entry.Ended
	}
	l.last++
	o.entry.ID, o.entry.Change = l.last, l.last
	o.at = l.entries.PushBack(o)
	l.bytes += o.entry.size()
	l.trim()
	l.announce()
}

// End records how the operation ended. Only the first call counts. It may come before Begin.
func (o *Operation) End(result Result) {
	l := o.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if o.entry.State != Running {
		return
	}
	if o.at != nil {
		l.bytes -= o.entry.size()
	}
	o.entry.State, o.entry.Ended = Succeeded, l.clock()
	if result.Failed {
		o.entry.State = Failed
		o.entry.Error, _ = Shorten(result.Error, maxError)
	}
	if result.Exit != nil {
		o.entry.Exit = new(*result.Exit)
	}
	if o.at == nil {
		return
	}
	l.last++
	o.entry.Change = l.last
	l.entries.MoveToBack(o.at)
	l.bytes += o.entry.size()
	l.trim()
	l.announce()
}

// trim forgets what is too much: the oldest that have ended, and the oldest of all when all run.
// The caller holds mu.
func (l *Log) trim() {
	for l.entries.Len() > maxEntries || l.bytes > maxBytes {
		oldest := l.entries.Front()
		for at := oldest; at != nil; at = at.Next() {
			if at.Value.(*Operation).entry.State != Running {
				oldest = at
				break
			}
		}
		o := l.entries.Remove(oldest).(*Operation)
		o.at = nil
		l.bytes -= o.entry.size()
	}
}

// announce wakes the readers. The caller holds mu.
func (l *Log) announce() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// After returns the entries that have changed after a position, in the order of their changes, the
// position after them, and a channel that is closed at the next change. A position that no change
// of this list has had means the beginning.
func (l *Log) After(position int64) (entries []Entry, next int64, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if position > l.last {
		position = 0
	}
	first := l.entries.Back()
	count := 0
	for at := first; at != nil && at.Value.(*Operation).entry.Change > position; at = at.Prev() {
		first = at
		count++
	}
	entries = make([]Entry, 0, count)
	for at := first; count > 0 && at != nil; at = at.Next() {
		entries = append(entries, at.Value.(*Operation).entry)
	}
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return entries, l.last, l.changed
}

// Shorten returns a copy of a text as UTF-8 of at most so many bytes, and whether that is not all.
func Shorten(text string, most int) (short string, cut bool) {
	if len(text) > most {
		text, cut = text[:most], true
		for i := 0; i < utf8.UTFMax && len(text) > 0; i++ { // a rune that was cut in two
			if r, size := utf8.DecodeLastRuneInString(text); r != utf8.RuneError || size != 1 {
				break
			}
			text = text[:len(text)-1]
		}
	}
	// What is no UTF-8 becomes a character of three bytes.
	if valid := strings.ToValidUTF8(text, "\ufffd"); len(valid) > most {
		short, _ := Shorten(valid, most)
		return short, true
	} else if valid != text {
		return valid, cut
	}
	return strings.Clone(text), cut
}

// printable replaces what a terminal or a page could take for more than text.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}

type textKey struct{}

// WithText returns a context whose operations are shown with a text, instead of what a client of
// another contract has them translated to.
func WithText(ctx context.Context, text string) context.Context {
	return context.WithValue(ctx, textKey{}, text)
}

// Text returns the text of WithText, or else the one given.
func Text(ctx context.Context, text string) string {
	if given, ok := ctx.Value(textKey{}).(string); ok {
		return given
	}
	return text
}

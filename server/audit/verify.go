package audit

import (
	"bufio"
	"errors"
	"fmt"
	"io"
)

// Report is what [Verify] found in a sound log.
type Report struct {
	// Lines is the number of lines.
	Lines int64
	// First and Last are the numbers (seq) of the first line and of the last.
	First, Last uint64
	// Begin is the hash that the first line builds on: that of the last line of the log before it,
	// or all zeros where a chain begins.
	Begin string
	// Hash is that of the last line.
	Hash string
	// Repairs counts the lines about a line that a crash had truncated.
	Repairs int
	// Open counts the intentions without an outcome.
	Open int
	// Expected reports whether the hash that was expected is that of a line.
	Expected bool

	size int64 // of the sound part, in bytes
}

// NewChain reports whether the log does not continue an earlier one.
func (r Report) NewChain() bool { return r.Begin == origin }

// Continues reports whether this log begins where the earlier one ends.
func (r Report) Continues(earlier Report) bool {
	return r.Begin == earlier.Hash && r.First == earlier.Last+1
}

// BrokenError says what is wrong with a log, and from which line on.
type BrokenError struct {
	Line int64 // counted from 1
	Why  error
}

// Error implements the error interface.
func (e *BrokenError) Error() string { return fmt.Sprintf("line %d %v", e.Line, e.Why) }

// Unwrap returns what is wrong.
func (e *BrokenError) Unwrap() error { return e.Why }

var (
	// ErrTorn is a last line without its end. A crash leaves one; the service cuts it off at its
	// next start.
	ErrTorn = errors.New(
		"is incomplete: the service was killed while it wrote the line, or writes it at this moment")

	errOrder = errors.New(
		"does not continue the line before it: lines were removed, repeated or moved")
	errAnchor = errors.New("is not the first line of a log: lines before it were removed")
	errNever  = errors.New("is missing: the log is empty")
)

// Verify reads a log from its first byte to its last and returns a [*BrokenError] for the first
// line that is not as it was written. It finds every changed byte and every line that was removed,
// repeated or moved, except lines that were cut off at the end. Expect is a hash that was kept: the
// report says whether the log still has the line.
func Verify(log io.Reader, expect string) (Report, error) {
	var r Report
	open := make(map[uint64]struct{})
	lines := bufio.NewReaderSize(log, 64<<10)
	var text []byte // of one line, used again for the next
	for {
		var whole bool
		var err error
		text, whole, err = nextLine(lines, text[:0])
		switch {
		case err != nil:
			return r, err
		case len(text) == 0 && !whole:
			if r.Lines == 0 {
				return r, &BrokenError{1, errNever}
			}
			r.Open = len(open)
			return r, nil
		case !whole:
			return r, &BrokenError{r.Lines + 1, ErrTorn}
		}
		h, err := unseal(text)
		if err == nil {
			err = r.take(h)
		}
		if err != nil {
			return r, &BrokenError{r.Lines + 1, err}
		}
		switch h.kind {
		case KindIntent:
			open[h.seq] = struct{}{}
		case KindOutcome:
			delete(open, h.intent)
		}
		r.Lines++
		r.size += int64(len(text)) + 1
		r.Expected = r.Expected || h.hash == expect
	}
}

// take accepts the next line if it continues the chain.
func (r *Report) take(h header) error {
	switch {
	case r.Lines == 0 && h.kind != KindAnchor:
		return errAnchor
	case r.Lines == 0:
		r.First, r.Begin = h.seq, h.prev
	case h.prev != r.Hash || h.seq != r.Last+1:
		return errOrder
	case h.kind == KindRepaired:
		r.Repairs++
	}
	r.Last, r.Hash = h.seq, h.hash
	return nil
}

// nextLine appends a line without its newline to text, and reports whether it had one. A line that
// is longer than any of ours is cut off.
func nextLine(lines *bufio.Reader, text []byte) (_ []byte, whole bool, err error) {
	for {
		part, err := lines.ReadSlice('\n')
		text = append(text, part...)
		switch {
		case err == nil:
			return text[:len(text)-1], true, nil
		case errors.Is(err, io.EOF):
			return text, false, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, false, fmt.Errorf("read the audit log: %w", err)
		case len(text) > maxLine:
			return text, true, nil
		}
	}
}

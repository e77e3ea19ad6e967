package eventlog

import (
	"bytes"
	"io"
)

// Lines is a part of a log's combined output, stdout and stderr in the order in which they arrived.
type Lines struct {
	// Last is the 0-based index of the last line that is complete; -1 when there is none. A last
	// line without a newline is complete when the log has ended.
	Last int64
	// Dropped is how many bytes of output were cut, which are those behind all lines.
	Dropped int64

	log    *Log
	from   int64 // index of the first line
	finish position
}

// Lines returns the lines after the one with that 0-based index, the unfinished last one included;
// -1 means all. As Last does not count an unfinished line, who asks for what comes after Last gets
// it again, from its beginning.
func (l *Log) Lines(after int64) *Lines {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := &Lines{log: l, from: min(after, l.end.lines) + 1, finish: l.end, Last: l.end.lines - 1, Dropped: l.dropped}
	if l.ended && l.open {
		lines.Last++
	}
	return lines
}

// WriteTo implements [io.WriterTo]: it writes the lines, bytes as they were written.
func (p *Lines) WriteTo(w io.Writer) (int64, error) {
	if p.from > p.finish.lines {
		return 0, nil
	}
	c := cursor{log: p.log, pos: p.log.mark(func(m position) bool { return m.lines < p.from })}
	defer c.release()
	var written int64
	for c.pos.offset < p.finish.offset {
		line := c.pos.lines
		f, ok, err := c.next()
		if err != nil || !ok {
			return written, err
		}
		if !f.isText() {
			continue
		}
		n, err := w.Write(p.cut(f, line))
		written += int64(n)
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// cut returns what of a frame that begins in the given line belongs to the part.
func (p *Lines) cut(f frame, line int64) []byte {
	payload := f.payload
	for ; line < p.from && len(payload) > 0; line++ {
		end := bytes.IndexByte(payload, '\n')
		if end < 0 {
			return nil
		}
		payload = payload[end+1:]
	}
	return payload
}

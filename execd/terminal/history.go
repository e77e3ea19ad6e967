package terminal

import "bytes"

// historyLimit is how much of a terminal's output is kept, in bytes: enough to draw any screen
// again, and some pages above it.
const historyLimit = 256 << 10

// maxTrim is how far a replay looks for a line's beginning, in bytes.
const maxTrim = 8 << 10

// history is the end of a terminal's output. Positions count all bytes from the first that was ever
// written.
type history struct {
	data []byte // a ring once it is full: position p is at p % historyLimit
	end  int64
}

// start is the position of the oldest byte that is kept.
func (h *history) start() int64 { return h.end - int64(len(h.data)) }

func (h *history) write(p []byte) {
	for len(p) > 0 {
		var n int
		if room := historyLimit - len(h.data); room > 0 {
			n = min(room, len(p))
			h.data = append(h.data, p[:n]...)
		} else {
			n = copy(h.data[h.end%historyLimit:], p)
		}
		h.end += int64(n)
		p = p[n:]
	}
}

// read copies what follows the position, as far as it goes in one piece. The position is not before
// start.
func (h *history) read(at int64, p []byte) int {
	if at >= h.end {
		return 0
	}
	piece := h.data[at%historyLimit:]
	return copy(p, piece[:min(int64(len(piece)), h.end-at)])
}

// replayFrom is where a replay begins: at the oldest byte, or after the first newline behind it
// when something is gone already, so that a screen does not begin with the rest of an escape
// sequence or of a character.
func (h *history) replayFrom() int64 {
	start := h.start()
	if start == 0 {
		return 0
	}
	var head [maxTrim]byte
	n := h.read(start, head[:])
	return start + int64(bytes.IndexByte(head[:n], '\n')+1)
}

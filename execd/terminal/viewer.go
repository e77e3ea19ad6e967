package terminal

import (
	"context"
	"io"
	"slices"

	"sandbox.internal/execd/internal/holds"
)

// chunkSize is how much a viewer takes at once, in bytes.
const chunkSize = 32 << 10

// Viewer follows a terminal's output at its own pace. It belongs to one goroutine.
type Viewer struct {
	terminal *Terminal
	next     int64 // position of the next byte; -1 before the first replay
	buffer   []byte
}

// Output is a piece of a terminal's output.
type Output struct {
	// Data is valid until the next call of Next. It can be empty at the beginning of a replay.
	Data []byte
	// Replay marks the beginning of a replay: what was seen before is void, and the next Replayed
	// bytes, beginning with Data, are the past. It is so for a viewer's first output, and again
	// whenever the viewer was too slow.
	Replay   bool
	Replayed int
	// At is the position of Data among all that the terminal has written.
	At int64
}

// Attach adds a viewer. It is to be closed.
func (t *Terminal) Attach() *Viewer {
	t.watched()
	t.mu.Lock()
	defer t.mu.Unlock()
	return &Viewer{terminal: t, next: -1, buffer: make([]byte, chunkSize)}
}

// AttachAt adds a viewer that has seen the first bytes of the output, as many as it says, and
// returns how many there are by now. A viewer that has missed some which are not kept begins with a
// replay, and one that claims more than there are with what comes from now on. It is to be closed.
func (t *Terminal) AttachAt(seen int64) (v *Viewer, written int64) {
	t.watched()
	t.mu.Lock()
	defer t.mu.Unlock()
	v = &Viewer{terminal: t, next: min(seen, t.history.end), buffer: make([]byte, chunkSize)}
	return v, t.history.end
}

// Written returns how many bytes the terminal has written.
func (t *Terminal) Written() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.history.end
}

// Follow adds a viewer that misses nothing: the program waits for it, as for the reader of a pipe,
// when it is a whole history behind, until the terminal is killed. It begins with what is kept, or,
// if it is live, with what comes from now on. It is to be closed.
func (t *Terminal) Follow(live bool) *Viewer {
	t.watched()
	t.mu.Lock()
	defer t.mu.Unlock()
	v := &Viewer{terminal: t, next: t.history.start(), buffer: make([]byte, chunkSize)}
	if live {
		v.next = t.history.end
	}
	t.followers = append(t.followers, v)
	return v
}

// watched counts a viewer. The first takes a hold for the terminal.
func (t *Terminal) watched() {
	hold := t.holds.Begin(holds.Terminal, t.id) // which may wait
	t.mu.Lock()
	t.viewers++
	if t.hold == nil {
		t.hold, hold = hold, nil
	}
	t.mu.Unlock()
	hold.End()
}

// Close takes the viewer off its terminal.
func (v *Viewer) Close() {
	v.terminal.mu.Lock()
	defer v.terminal.mu.Unlock()
	v.terminal.viewers--
	if v.terminal.viewers == 0 {
		v.terminal.hold.End()
		v.terminal.hold = nil
	}
	v.terminal.followers = slices.DeleteFunc(v.terminal.followers, func(other *Viewer) bool { return other == v })
	v.terminal.taken.Broadcast()
}

// room is how many bytes can be added to the history before a follower would miss some. The caller
// holds the lock.
func (t *Terminal) room() int64 {
	room := int64(historyLimit)
	if !t.killed {
		for _, v := range t.followers {
			room = min(room, v.next-t.history.end+historyLimit)
		}
	}
	return room
}

// Next returns what comes next and waits for it. It returns io.EOF when the terminal has ended and
// everything was seen, and the error of ctx.
func (v *Viewer) Next(ctx context.Context) (Output, error) {
	t := v.terminal
	for {
		t.mu.Lock()
		output := v.take()
		more, ended := t.changed, t.ended
		t.mu.Unlock()
		switch {
		case output.Replay || len(output.Data) > 0:
			return output, nil
		case ended:
			return Output{}, io.EOF
		}
		select {
		case <-more:
		case <-ctx.Done():
			return Output{}, context.Cause(ctx)
		}
	}
}

// take copies out what is there. The caller holds the terminal's lock.
func (v *Viewer) take() Output {
	h := &v.terminal.history
	var output Output
	if v.next < h.start() { // also at first, as -1 is before everything
		v.next = h.replayFrom()
		output.Replay, output.Replayed = true, int(h.end-v.next)
	}
	output.At = v.next
	n := h.read(v.next, v.buffer)
	v.next += int64(n)
	if n > 0 {
		v.terminal.taken.Broadcast()
	}
	output.Data = v.buffer[:n]
	return output
}

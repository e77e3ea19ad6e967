package e2b

import (
	"context"
	"encoding/base64"
	"errors"
	"io"
	"sync"
	"time"

	"sandbox.internal/execd/internal/eventlog"
	"sandbox.internal/execd/terminal"
)

// channel is what a process writes to.
type channel int

const (
	channelStdout channel = iota
	channelStderr
	channelPTY
	channels
)

// before are the beginnings of messages with data, which base64 and afterData complete.
var before = [channels]string{
	`{"event":{"data":{"stdout":"`, `{"event":{"data":{"stderr":"`, `{"event":{"data":{"pty":"`,
}

const afterData = `"}}}`

const (
	// gathered is how many bytes of output are sent in one message although more are at hand.
	gathered = 32 << 10
	// maxKeptBuffer bounds the buffers that are kept after a long line, in bytes.
	maxKeptBuffer = 256 << 10
)

// buffers are what output gathers in, and what messages are made in. A stream has some only while
// it sends.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

func putBuffer(buffer *[]byte) {
	if cap(*buffer) <= maxKeptBuffer {
		buffers.Put(buffer)
	}
}

// output is the stream of a process's events. It belongs to one goroutine.
//
// Clients decode each message with data by itself, and some lose a UTF-8 character that two of them
// share. So the beginning of one is held until more comes, or the process ends.
type output struct {
	stream *stream
	every  time.Duration // between messages of a silent process
	held   [channels][]byte
}

func newOutput(out *stream, every time.Duration) *output { return &output{stream: out, every: every} }

func (o *output) start(pid int) error {
	return o.stream.send(eventMessage{processEvent{Start: &startEvent{pid}}})
}

func (o *output) end(end endEvent) error {
	return o.stream.send(eventMessage{processEvent{End: &end}})
}

// flush sends what is held: nothing follows it.
func (o *output) flush() error {
	for channel, held := range o.held {
		if len(held) > 0 {
			if err := o.write(held, before[channel]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (o *output) keepAlive() error {
	return o.stream.send(eventMessage{processEvent{KeepAlive: &empty{}}})
}

// data sends what is held of a channel and what follows it, both in data, but for the beginning of
// a character.
func (o *output) data(to channel, data []byte) error {
	n := eventlog.WholeRunes(data)
	if n > 0 {
		if err := o.write(data[:n], before[to]); err != nil {
			return err
		}
	}
	o.held[to] = append(o.held[to][:0], data[n:]...) // after the write: data may begin in the same place
	return nil
}

func (o *output) write(data []byte, before string) error {
	buffer := buffers.Get().(*[]byte)
	defer putBuffer(buffer)
	framed := append((*buffer)[:0], make([]byte, envelopeHeader)...)
	framed = append(framed, before...)
	framed = base64.StdEncoding.AppendEncode(framed, data)
	*buffer = append(framed, afterData...)
	return o.stream.write(0, *buffer)
}

// followCommand sends the output that a reader of a command's log finds, until the command ends. It
// closes the reader. It returns the cause of ctx when that ends before.
func (o *output) followCommand(ctx context.Context, reader *eventlog.Reader) error {
	defer reader.Close()
	silent := time.NewTimer(o.every)
	defer silent.Stop()
	for {
		ended, err := o.catchUp(reader)
		if err != nil {
			return err
		}
		if ended {
			return o.flush()
		}
		silent.Reset(o.every)
		select {
		case <-reader.Wait():
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		case <-silent.C:
			err = o.keepAlive()
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// catchUp sends the output that is at hand, or as much as is worth a message, and reports whether
// the command has ended.
func (o *output) catchUp(reader *eventlog.Reader) (ended bool, err error) {
	buffer := buffers.Get().(*[]byte)
	defer putBuffer(buffer)
	data := (*buffer)[:0]
	defer func() { *buffer = data }()
	current := channels // none
	for len(data) < gathered {
		event, ok, err := reader.Next()
		if errors.Is(err, io.EOF) {
			ended = true
			break
		}
		if err != nil {
			return false, err
		}
		if !ok {
			break
		}
		to := channels
		switch event.Type {
		case eventlog.TypeStdout:
			to = channelStdout
		case eventlog.TypeStderr, eventlog.TypeStatus: // the log has reached its limit, and the rest is lost
			to = channelStderr
		default:
			continue
		}
		if to != current {
			if current != channels {
				if err := o.data(current, data); err != nil {
					return false, err
				}
			}
			current = to
			data = append(data[:0], o.held[to]...)
		}
		data = append(data, event.Text...)
		if !event.Partial {
			data = append(data, '\n')
		}
	}
	if current != channels {
		err = o.data(current, data)
	}
	return ended, err
}

// followTerminal sends the output that a viewer sees, until the terminal ends. It returns the cause
// of ctx when that ends before.
func (o *output) followTerminal(ctx context.Context, viewer *terminal.Viewer) error {
	for {
		silent, cancel := context.WithTimeout(ctx, o.every)
		seen, err := viewer.Next(silent)
		cancel()
		switch {
		case err == nil:
			err = o.data(channelPTY, append(o.held[channelPTY], seen.Data...))
		case errors.Is(err, io.EOF):
			return o.flush()
		case ctx.Err() != nil:
			return context.Cause(ctx)
		default:
			err = o.keepAlive()
		}
		if err != nil {
			return err
		}
	}
}

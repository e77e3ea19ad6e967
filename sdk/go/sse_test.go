package sandbox_test

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	sandbox "sandbox.internal/sdk/go"
)

func TestEventReader(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 200<<10)
	tests := []struct {
		name, stream string
		want         []string // id|data
		err          error
	}{
		{name: "nothing", err: io.EOF},
		{name: "one event", stream: "id: 1\ndata: {}\n\n", want: []string{"1|{}"}, err: io.EOF},
		{name: "no id", stream: "data: a\n\ndata: b\n\n", want: []string{"|a", "|b"}, err: io.EOF},
		{name: "the id holds on", stream: "id: 7\ndata: a\n\ndata: b\n\n",
			want: []string{"7|a", "7|b"}, err: io.EOF},
		{name: "an id without data", stream: "id: 7\n\ndata: a\n\n", want: []string{"7|a"},
			err: io.EOF},
		{name: "an id with NUL is ignored", stream: "id: 1\nid: 2\x003\ndata: a\n\n",
			want: []string{"1|a"}, err: io.EOF},
		{name: "several data lines", stream: "data: a\ndata: b\ndata:\ndata: c\n\n",
			want: []string{"|a\nb\n\nc"}, err: io.EOF},
		{name: "one space belongs to the field", stream: "data:  a \n\ndata:b\n\n",
			want: []string{"| a ", "|b"}, err: io.EOF},
		{name: "a colon in the data", stream: "data: a: b\n\n", want: []string{"|a: b"},
			err: io.EOF},
		{name: "empty data", stream: "data\n\ndata:\n\n", want: []string{"|", "|"}, err: io.EOF},
		{name: "comments and other fields", stream: ": hello\nretry: 5\nevent: x\ndata: a\n:\n\n",
			want: []string{"|a"}, err: io.EOF},
		{name: "CRLF", stream: "id: 1\r\ndata: a\r\ndata: b\r\n\r\ndata: c\r\n\r\n",
			want: []string{"1|a\nb", "1|c"}, err: io.EOF},
		{name: "CR", stream: "data: a\rdata: b\r\rdata: c\r\r", want: []string{"|a\nb", "|c"},
			err: io.EOF},
		{name: "blank lines between", stream: "\n\ndata: a\n\n\n\ndata: b\n\n\n",
			want: []string{"|a", "|b"}, err: io.EOF},
		{name: "byte order mark", stream: "\ufeffdata: a\n\n\ufeffdata: b\n\n",
			want: []string{"|a"}, err: io.EOF},
		{name: "a long line", stream: "data: " + long + "\n\n", want: []string{"|" + long},
			err: io.EOF},
		{name: "comment at the end", stream: "data: a\n\n: bye\n", want: []string{"|a"},
			err: io.EOF},
		{name: "cut before the blank line", stream: "data: a\n\ndata: b\n", want: []string{"|a"},
			err: io.ErrUnexpectedEOF},
		{name: "cut within a line", stream: "data: a\n\nda", want: []string{"|a"},
			err: io.ErrUnexpectedEOF},
	}
	for _, test := range tests {
		// One byte at a time shows every place where a read may end.
		sources := map[string]io.Reader{
			"at once":      strings.NewReader(test.stream),
			"byte by byte": iotest.OneByteReader(strings.NewReader(test.stream)),
		}
		for how, source := range sources {
			t.Run(test.name+"/"+how, func(t *testing.T) {
				t.Parallel()
				reader := sandbox.NewEventReader(source)
				for i, want := range test.want {
					id, data, err := reader.Next()
					if got := id + "|" + data; err != nil || got != want {
						t.Fatalf("event %d is %.60q (%v), want %.60q", i, got, err, want)
					}
				}
				if _, data, err := reader.Next(); !errors.Is(err, test.err) {
					t.Fatalf("after the last event: %.60q, %v, want %v", data, err, test.err)
				}
			})
		}
	}
}

// An event must be handed out when its blank line has arrived, not when more has.
func TestEventReaderDoesNotWaitForMore(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"\n", "\r\n", "\r"} {
		source, sink := io.Pipe()
		events := make(chan string)
		go func() {
			reader := sandbox.NewEventReader(source)
			for {
				_, data, err := reader.Next()
				if err != nil {
					close(events)
					return
				}
				events <- data
			}
		}()
		for _, data := range []string{"a", "b"} {
			if _, err := io.WriteString(sink, "data: "+data+end+end); err != nil {
				t.Fatal(err)
			}
			select {
			case got := <-events:
				if got != data {
					t.Errorf("line end %q: got %q, want %q", end, got, data)
				}
			case <-time.After(time.Minute):
				t.Fatalf("line end %q: the event is held back", end)
			}
		}
		_ = sink.Close()
		<-events
	}
}

func TestEventReaderRefusesEndlessLine(t *testing.T) {
	t.Parallel()
	reader := sandbox.NewEventReader(strings.NewReader("data: " + strings.Repeat("x", 1000) + "\n\n"))
	reader.Limit(1000)
	_, _, err := reader.Next()
	if err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Fatalf("err = %v, want one about the length of the line", err)
	}
}

func TestEventReaderReportsReadErrors(t *testing.T) {
	t.Parallel()
	broken := errors.New("connection reset")
	reader := sandbox.NewEventReader(io.MultiReader(strings.NewReader("data: a\n"),
		iotest.ErrReader(broken)))
	if _, _, err := reader.Next(); !errors.Is(err, broken) {
		t.Fatalf("err = %v, want %v", err, broken)
	}
}

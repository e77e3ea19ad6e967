package sse_test

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"sandbox.internal/wire/sse"
)

const limit = 100 << 10

// readAll returns the events of a stream, each as its last id, "|" and its data, and the error at
// its end.
func readAll(stream io.Reader) (events []string, err error) {
	for reader := sse.NewReader(stream, limit); ; {
		data, err := reader.Next()
		if err != nil {
			return events, err
		}
		events = append(events, reader.ID()+"|"+string(data))
	}
}

func TestReader(t *testing.T) {
	long := strings.Repeat("x", limit-len("data: "))
	for name, tc := range map[string]struct {
		stream string
		want   []string
		err    error
	}{
		"nothing":                  {"", nil, io.EOF},
		"one event":                {"data: a\n\n", []string{"|a"}, io.EOF},
		"no space":                 {"data:a\n\n", []string{"|a"}, io.EOF},
		"only one space is left":   {"data:  a\n\n", []string{"| a"}, io.EOF},
		"several lines":            {"data: a\ndata\ndata: b\n\n", []string{"|a\n\nb"}, io.EOF},
		"empty data":               {"data\n\n", []string{"|"}, io.EOF},
		"ids stay":                 {"id: 1\ndata: a\n\ndata: b\n\nid\ndata: c\n\n", []string{"1|a", "1|b", "|c"}, io.EOF},
		"an id without data":       {"id: 7\n\ndata: a\n\n", []string{"7|a"}, io.EOF},
		"an id with a null byte":   {"id: 1\nid: \x00\ndata: a\n\n", []string{"1|a"}, io.EOF},
		"comments, other fields":   {": x\nevent: e\nretry: 1\nx\n\n: y\ndata: a\n\n: z\n", []string{"|a"}, io.EOF},
		"CRLF":                     {"id: 1\r\ndata: a\r\n\r\ndata: b\r\n\r\n", []string{"1|a", "1|b"}, io.EOF},
		"CR":                       {"data: a\r\rdata: b\r\r", []string{"|a", "|b"}, io.EOF},
		"mixed ends of lines":      {"data: a\r\ndata: b\n\r\ndata: c\r\n\r", []string{"|a\nb", "|c"}, io.EOF},
		"a byte order mark":        {"\ufeffdata: a\n\n\ufeffdata: b\n\n", []string{"|a"}, io.EOF},
		"the end within an event":  {"data: a\n\ndata: b\n", []string{"|a"}, io.ErrUnexpectedEOF},
		"the end within a line":    {"data: a\n\ndat", []string{"|a"}, io.ErrUnexpectedEOF},
		"the end within a comment": {"data: a\n\n: b", []string{"|a"}, io.ErrUnexpectedEOF},
		"the longest line":         {"data: " + long + "\n\n", []string{"|" + long}, io.EOF},
	} {
		t.Run(name, func(t *testing.T) {
			for kind, stream := range map[string]io.Reader{
				"at once":      strings.NewReader(tc.stream),
				"byte by byte": iotest.OneByteReader(strings.NewReader(tc.stream)),
			} {
				got, err := readAll(stream)
				if !slices.Equal(got, tc.want) || !errors.Is(err, tc.err) {
					t.Errorf("%s: %.200q and %v, not %.200q and %v", kind, got, err, tc.want, tc.err)
				}
			}
		})
	}
}

func TestHasID(t *testing.T) {
	reader := sse.NewReader(strings.NewReader("id: 1\ndata: a\n\ndata: b\n\nid: 2\n\ndata: c\n\n"), limit)
	for _, want := range []bool{true, false, false} {
		if data, err := reader.Next(); err != nil || reader.HasID() != want {
			t.Errorf("%q: HasID is %t, %v", data, reader.HasID(), err)
		}
	}
}

// TestReaderLimits: neither a line nor the lines of an event make a Reader grow without a bound.
func TestReaderLimits(t *testing.T) {
	for name, stream := range map[string]string{
		"line":  "data: " + strings.Repeat("x", limit),
		"event": strings.Repeat("data: "+strings.Repeat("x", limit/4)+"\n", 5),
	} {
		if got, err := readAll(strings.NewReader(stream)); got != nil || err == nil ||
			!strings.Contains(err.Error(), name) {
			t.Errorf("%s: %d events and %v", name, len(got), err)
		}
	}
}

// TestEventIsReturnedAtItsEnd: an event is returned before another byte of the stream arrives.
func TestEventIsReturnedAtItsEnd(t *testing.T) {
	for _, event := range []string{"data: a\n\n", "data: a\r\r", "data: a\r\n\r"} {
		in, out := io.Pipe()
		go func() { _, _ = out.Write([]byte(event)) }()
		if data, err := sse.NewReader(in, limit).Next(); string(data) != "a" || err != nil {
			t.Errorf("%q: %q, %v", event, data, err)
		}
		_ = in.Close()
	}
}

// FuzzReader: how the bytes of a stream are cut does not change its events.
func FuzzReader(f *testing.F) {
	f.Add("data: a\r\n\r\nid: 1\ndata\n\n:\n")
	f.Add("\ufeffdata: a\rdata: b\n\r")
	f.Fuzz(func(t *testing.T, stream string) {
		whole, err := readAll(strings.NewReader(stream))
		cut, cutErr := readAll(iotest.OneByteReader(strings.NewReader(stream)))
		if !slices.Equal(whole, cut) || (err == io.EOF) != (cutErr == io.EOF) {
			t.Errorf("%q, %v; byte by byte %q, %v", whole, err, cut, cutErr)
		}
	})
}

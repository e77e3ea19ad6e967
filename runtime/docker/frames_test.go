package docker

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
)

func frame(stream byte, text string) string {
	header := [8]byte{0: stream}
	binary.BigEndian.PutUint32(header[4:], uint32(len(text)))
	return string(header[:]) + text
}

func TestCopyFrames(t *testing.T) {
	full := strings.Repeat("x", fullPiece)
	for name, c := range map[string]struct {
		frames []string
		want   string
	}{
		"nothing": {nil, ""},
		"two streams": {[]string{frame(1, "one\n"), frame(2, "\x00\xff\n"),
			frame(1, "end")}, "one\n\x00\xff\nend"},
		"a long line": {[]string{frame(1, full), frame(1, full),
			frame(1, "rest\n"), frame(1, "next\n")}, full + full + "rest\nnext\n"},
		"a long line without its newline": {[]string{frame(1, full), frame(1, "rest"),
			frame(1, "next\n")}, full + "rest\nnext\n"},
		"with the other stream between": {[]string{frame(1, full), frame(1, "rest"),
			frame(2, "err\n"), frame(1, "next\n")}, full + "resterr\n\nnext\n"},
		"a line that fills its pieces": {[]string{frame(1, full), frame(1, ""),
			frame(1, "next\n")}, full + "\nnext\n"},
		"a stream that ends": {[]string{frame(1, "end"), frame(2, "err\n"),
			frame(2, "err\n")}, "enderr\nerr\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := copyFrames(&out, strings.NewReader(strings.Join(c.frames, ""))); err != nil ||
				out.String() != c.want {
				t.Errorf("%d bytes ending in %.20q, %v", out.Len(), out.String(), err)
			}
		})
	}
	for name, frames := range map[string]string{
		"half a header": "\x01\x00", "half a piece": frame(1, "text")[:10],
		"no frame": "hello, this is no frame", "the engine's error": frame(systemError, "broken"),
	} {
		if err := copyFrames(io.Discard, strings.NewReader(frames)); err == nil ||
			errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

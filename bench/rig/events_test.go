package rig

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestEventReader(t *testing.T) {
	long := strings.Repeat("y", 200<<10)
	for name, tc := range map[string]struct {
		stream string
		kind   string
		output string // what the process wrote
	}{
		"a line":              {"id: 3\ndata: {\"type\":\"stdout\",\"timestamp\":1700000000000,\"text\":\"hello\"}\n\n", "stdout", "hello\n"},
		"no space, CR and LF": {"data:{\"type\":\"stdout\",\"timestamp\":1,\"text\":\"hello\"}\r\n\r\n", "stdout", "hello\n"},
		"escapes": {`data: {"type":"stdout","timestamp":1,"text":"a\"b\\n\u00e9"}` +
			"\n\n", "stdout", "a\"b\\né\n"},
		"another order": {`data: {"text":"x","type":"stdout"}` + "\n\n", "stdout", "x\n"},
		"more fields": {`data: {"type":"stdout","timestamp":1,"text":"x","more":"y"}` +
			"\n\n", "stdout", "x\n"},
		"an empty line": {`data: {"type":"stdout","timestamp":1,"text":"\n"}` + "\n\n",
			"stdout", "\n"},
		"a fragment":           {`data: {"type":"stdout","timestamp":1,"text":"$ ","partial":true}` + "\n\n", "stdout", "$ "},
		"bytes that are not U": {`data: {"type":"stdout","timestamp":1,"text":"\ufffd","raw":"/w=="}` + "\n\n", "stdout", "\xff\n"},
		"the end":              {`data: {"type":"execution_complete","timestamp":1,"execution_time":2,"exit_code":0}` + "\n\n", "execution_complete", "\n"},
		"a comment before":     {": still here\n\nevent: x\ndata: {\"type\":\"stdout\",\"timestamp\":1,\"text\":\"x\"}\n\n", "stdout", "x\n"},
		"two data lines": {"data: {\"type\":\"stdout\",\ndata: \"text\":\"x\"}\n\n", "stdout",
			"x\n"},
		"longer than a buffer": {`data: {"type":"stdout","timestamp":1,"text":"` + long + `"}` +
			"\n\n", "stdout", long + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newEventReader(iotest.HalfReader(strings.NewReader(tc.stream)))
			e, err := r.Read()
			if err != nil {
				t.Fatal(err)
			}
			line, whole := e.Output()
			got := string(line)
			if whole {
				got += "\n"
			}
			if e.Kind != tc.kind || got != tc.output {
				t.Fatalf("event %s %q, want %s %q", e.Kind, got, tc.kind, tc.output)
			}
			if _, err := r.Read(); !errors.Is(err, io.EOF) {
				t.Fatalf("after the last event: %v, want io.EOF", err)
			}
		})
	}
}

func TestEventReaderCutShort(t *testing.T) {
	for name, stream := range map[string]string{
		"within a line":         `data: {"type":"std`,
		"before the blank line": `data: {"type":"stdout","timestamp":1,"text":"x"}` + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := newEventReader(strings.NewReader(stream)).Read(); !errors.Is(err,
				io.ErrUnexpectedEOF) {
				t.Fatalf("error %v, want io.ErrUnexpectedEOF", err)
			}
		})
	}
	if _, err := newEventReader(strings.NewReader("data: no JSON\n\n")).Read(); err == nil {
		t.Fatal("an event that is no JSON is no error")
	}
}

package api

import (
	"encoding/base64"
	"encoding/binary"
	"strconv"
	"unicode/utf8"

	"sandbox.internal/execd/command"
	"sandbox.internal/execd/internal/eventlog"
)

// detailFunc appends the members of an event that only its source has, each with a comma before it.
type detailFunc func(b []byte, e eventlog.Event) []byte

// appendEvent appends an event as JSON (execd document, "Stream event"). It is written by hand: a
// stream carries millions of lines, and none of them may cost an allocation.
func appendEvent(b []byte, e eventlog.Event, detail detailFunc) []byte {
	b = append(b, `{"type":"`...)
	if e.Type == eventlog.TypeDisplay { // the contract does not tell them apart
		e.Type = eventlog.TypeResult
	}
	b = append(b, e.Type...)
	b = append(b, `","timestamp":`...)
	b = strconv.AppendInt(b, e.Time, 10)
	switch e.Type {
	case eventlog.TypeInit, eventlog.TypeStatus, eventlog.TypeStdout, eventlog.TypeStderr:
		b = appendText(b, e)
	default:
		b = detail(b, e)
	}
	return append(b, '}')
}

func appendText(b []byte, e eventlog.Event) []byte {
	if len(e.Text) == 0 && !e.Partial {
		return append(b, `,"text":"\n"`...) // an empty line, or clients that skip empty texts would lose it
	}
	b = append(b, `,"text":`...)
	b = appendString(b, e.Text)
	if e.Partial {
		b = append(b, `,"partial":true`...)
	}
	if !utf8.Valid(e.Text) {
		b = append(b, `,"raw":"`...)
		b = base64.StdEncoding.AppendEncode(b, e.Text)
		b = append(b, '"')
	}
	return b
}

// oomKilled is the reason of a command or a cell that ended because memory ran out.
const oomKilled = "OOM_KILLED"

// appendExit appends how a command ended.
func appendExit(b []byte, e eventlog.Event) []byte {
	exit, err := command.ParseExit(e.Text)
	if err != nil {
		exit.Reason = err.Error() // the event itself still reports that it failed
	}
	b = append(b, `,"execution_time":`...)
	b = strconv.AppendInt(b, exit.Duration.Milliseconds(), 10)
	b = append(b, `,"exit_code":`...)
	code := "null"
	if exit.Code != nil {
		code = strconv.Itoa(*exit.Code)
	}
	b = append(b, code...)
	if exit.OOMKilled {
		b = append(b, `,"reason":"`+oomKilled+`"`...)
	}
	if exit.Type() == eventlog.TypeComplete {
		return b
	}
	// Clients of the field read the exit code out of evalue, so a timeout, which has none, must not
	// put a number there.
	name, text := "CommandExecError", code
	if exit.TimedOut {
		name, text = "CommandTimeoutError", "the command ran into its timeout"
	}
	b = append(b, `,"error":{"ename":"`...)
	b = append(b, name...)
	b = append(b, `","evalue":`...)
	b = appendString(b, []byte(text))
	b = append(b, `,"traceback":[`...)
	b = appendString(b, []byte(exit.Reason))
	return append(b, `]}`...)
}

func appendPing(b []byte, now int64) []byte {
	b = append(b, `{"type":"ping","timestamp":`...)
	b = strconv.AppendInt(b, now, 10)
	return append(b, `,"text":"pong"}`...)
}

// plain reports whether none of eight bytes needs attention in a JSON string: it is printable
// ASCII, no quote and no backslash. For some that are all plain it may say no.
func plain(eight uint64) bool {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	quotes, slashes := eight^(ones*'"'), eight^(ones*'\\')
	attention := (eight-ones*' ')&^eight | (quotes-ones)&^quotes | (slashes-ones)&^slashes | eight
	return attention&highs == 0
}

// appendString appends text as a JSON string. Bytes that are no UTF-8 become U+FFFD.
func appendString(b, text []byte) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	start := 0
	for i := 0; i < len(text); {
		if len(text)-i >= 8 && plain(binary.LittleEndian.Uint64(text[i:])) {
			i += 8
			continue
		}
		c := text[i]
		if c >= ' ' && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRune(text[i:])
			if r != utf8.RuneError || size > 1 {
				i += size
				continue
			}
		}
		b = append(b, text[start:i]...)
		i++
		start = i
		switch {
		case c >= utf8.RuneSelf:
			b = append(b, "\ufffd"...)
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c == '\n':
			b = append(b, '\\', 'n')
		case c == '\r':
			b = append(b, '\\', 'r')
		case c == '\t':
			b = append(b, '\\', 't')
		default:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&0xf])
		}
	}
	b = append(b, text[start:]...)
	return append(b, '"')
}

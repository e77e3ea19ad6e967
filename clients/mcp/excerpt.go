package mcp

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode"
)

const (
	// maxText bounds the text of an answer, in bytes: some 6000 tokens.
	maxText = 24 << 10
	// maxHead and maxTail are what is shown of a longer output.
	maxHead = 8 << 10
	maxTail = maxText - maxHead
)

// excerpt is the beginning and the end of an output.
type excerpt struct {
	head []byte
	tail []byte // of what does not fit into the head
	size int64
	// lines is how many lines have ended.
	lines int64
}

// Write implements io.Writer.
func (e *excerpt) Write(p []byte) (int, error) {
	e.add(p)
	return len(p), nil
}

// add adds a piece of the output.
func (e *excerpt) add(p []byte) {
	e.size += int64(len(p))
	e.lines += int64(bytes.Count(p, []byte("\n")))
	room := max(0, maxHead-len(e.head))
	if len(e.tail) > 0 {
		room = 0
	}
	n := min(room, len(p))
	e.head = append(e.head, p[:n]...)
	if p = p[n:]; len(p) == 0 {
		return
	}
	if len(p) > maxTail {
		p = p[len(p)-maxTail:]
	}
	if len(e.tail)+len(p) > 2*maxTail { // not with each piece
		e.tail = append(e.tail[:0], e.tail[len(e.tail)-maxTail:]...)
	}
	e.tail = append(e.tail, p...)
}

// text shows the output. how says how to read on after the line with that index.
func (e *excerpt) text(how func(line int64) string) string {
	if e.size <= maxText {
		return string(e.head) + string(e.tail)
	}
	head, tail := e.head, e.tail[max(0, len(e.tail)-maxTail):]
	if end := bytes.LastIndexByte(head, '\n'); end >= 0 {
		head = head[:end+1]
	}
	if start := bytes.IndexByte(tail, '\n'); start >= 0 && start < len(tail)-1 {
		tail = tail[start+1:]
	}
	line := int64(bytes.Count(head, []byte("\n"))) - 1
	return fmt.Sprintf("%s\n[%d bytes are left out here; %s]\n%s",
		strings.ToValidUTF8(string(head), "?"), e.size-int64(len(head))-int64(len(tail)), how(line),
		strings.ToValidUTF8(string(tail), "?"))
}

// lines is a list whose answer has a bound.
type lines struct{ strings.Builder }

// add adds a line, and reports whether there was room for it.
func (l *lines) add(format string, args ...any) bool {
	line := fmt.Sprintf(format, args...)
	if l.Len()+len(line) > maxText {
		return false
	}
	l.WriteString(line)
	return true
}

// short is the beginning of a text that others chose, without what would end its line.
func short(text string, limit int) string {
	if len(text) > limit {
		text = text[:limit] + "..."
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
}

// bounded is an error whose text fits into an answer.
func bounded(err error) error {
	text := err.Error()
	if len(text) <= maxText {
		return err
	}
	shown := &excerpt{}
	shown.add([]byte(text))
	return errors.New(shown.text(func(int64) string { return "an error has no more" }))
}

// cutLines keeps whole lines of the beginning of a text, or a part of its first line.
func cutLines(log string) string {
	log = log[:maxText]
	if end := strings.LastIndexByte(log, '\n'); end >= 0 {
		return log[:end+1]
	}
	return strings.ToValidUTF8(log, "?") + " [this line is longer]\n"
}

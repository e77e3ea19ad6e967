package cli

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// progress is a line at the bottom of a terminal that is written again and again.
type progress struct {
	t *tool

	mu sync.Mutex
}

// newProgress returns nil where there is no use for it: in a pipe, with --quiet, and on a terminal
// that cannot go back in a line.
func (t *tool) newProgress() *progress {
	if !isTerminal(t.Stderr) || t.Printer.Quiet || t.Env("TERM") == "dumb" {
		return nil
	}
	return &progress{t: t}
}

// show replaces the line.
func (p *progress) show(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = fmt.Fprintf(p.t.Stderr, "\r\x1b[K%s", p.t.Shorten(p.t.Clean(text), p.t.width()-1))
}

// clear takes the line away.
func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = io.WriteString(p.t.Stderr, "\r\x1b[K")
}

// transfer counts the bytes that pass on their way, and shows rate and time left.
type transfer struct {
	line  *progress // nil shows nothing
	what  string
	total int64 // 0 when it is not known
	start time.Time

	mu   sync.Mutex
	done int64
	last time.Time
}

// showEvery is how often the line of a transfer changes.
const showEvery = 200 * time.Millisecond

func (t *tool) newTransfer(what string, total int64) *transfer {
	return &transfer{line: t.newProgress(), what: what, total: total, start: time.Now()}
}

func (f *transfer) add(n int) {
	f.mu.Lock()
	f.done += int64(n)
	now := time.Now()
	due := f.line != nil && now.Sub(f.last) >= showEvery
	if due {
		f.last = now
	}
	done := f.done
	f.mu.Unlock()
	if due {
		f.line.show(describeTransfer(f.what, done, f.total, now.Sub(f.start)))
	}
}

func (f *transfer) end() {
	if f.line != nil {
		f.line.clear()
	}
}

func (f *transfer) reader(r io.Reader) io.Reader { return countedReader{r, f} }

func (f *transfer) writer(w io.Writer) io.Writer { return countedWriter{w, f} }

type countedReader struct {
	io.Reader
	f *transfer
}

func (r countedReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.f.add(n)
	return n, err
}

type countedWriter struct {
	io.Writer
	f *transfer
}

func (w countedWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	w.f.add(n)
	return n, err
}

// describeTransfer is one line about a transfer. total is 0 when it is not known.
func describeTransfer(what string, done, total int64, took time.Duration) string {
	text := what + " " + bytesOf(done)
	if total > 0 {
		text = fmt.Sprintf("%s %d%% of %s", what, 100*min(done, total)/total, bytesOf(total))
	}
	if took < showEvery || done == 0 {
		return text
	}
	rate := float64(done) / took.Seconds()
	text += fmt.Sprintf("  %s/s", bytesOf(int64(rate)))
	if total > done {
		text += "  " + roughly(time.Duration(float64(total-done)/rate*float64(time.Second))) + " left"
	}
	return text
}

// bytesOf is a number of bytes for people.
func bytesOf(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, units := float64(n)/unit, "KMGTPE"
	for value >= unit && len(units) > 1 {
		value, units = value/unit, units[1:]
	}
	return fmt.Sprintf("%.1f %ciB", value, units[0])
}

// warn prints a line that is no result.
func (t *tool) warn(format string, args ...any) {
	_, _ = fmt.Fprintf(t.Stderr, "sandbox: %s\n", t.Clean(fmt.Sprintf(format, args...)))
}

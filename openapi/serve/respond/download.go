package respond

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"sandbox.internal/openapi/serve/internal/problem"
)

// downloadBlock is how much of a file is read and written at a time, in bytes.
const downloadBlock = 256 << 10

// endOfFiles is the largest position that a range can name.
const endOfFiles = "9223372036854775807"

var downloadBlocks = sync.Pool{New: func() any { return new([downloadBlock]byte) }}

// Download answers with a file, or with the one byte range of it that the client
// asked for.
type Download struct {
	// Request is the client's; its method, Range and If-Range count.
	Request *http.Request
	// Name is offered to the client as the file's name.
	Name string
	// Tag names this state of the content and no other; a client that resumes another
	// state gets all of this one instead of a mixture. It is sent as the ETag, without
	// quotes or spaces here. Empty if unknown: then nothing can be resumed.
	Tag string
	// ModTime is when the content last changed, for Last-Modified alone. Zero if unknown.
	ModTime time.Time
	// Content is read from wherever the range says, and not closed.
	Content io.ReadSeeker
	// WriteTimeout limits one write to the client; 0 means [DefaultWriteTimeout].
	WriteTimeout time.Duration
}

// Serve writes the response. A range that cannot be satisfied is returned as a 416
// [Problem] before anything is written, with Content-Range set on w. An error after
// the response has begun means that the client did not get all of it.
func (d Download) Serve(w http.ResponseWriter) error {
	size, err := d.Content.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("download %s: find its size: %w", d.Name, err)
	}
	tag := ""
	if d.Tag != "" {
		tag = `"` + d.Tag + `"`
	}
	header := d.Request.Header.Get("Range")
	// ServeContent would also compare a date, although a file may change several times
	// within a second.
	if condition := d.Request.Header.Get("If-Range"); condition != "" && condition != tag {
		header = ""
	}
	wanted, ok := singleRange(header)
	if !ok {
		return d.unsatisfiable(w, size)
	}
	// The last N bytes, where these are none: ServeContent would send a 206 whose range
	// ends before it begins.
	if suffix, last := strings.CutPrefix(wanted, "bytes=-"); last {
		switch {
		case suffix == "0":
			return d.unsatisfiable(w, size)
		case size == 0:
			wanted = ""
		}
	}

	// ServeContent gets only what the contract has: with the client's own headers
	// it would also answer 304, 412 and several ranges in one multipart body.
	r := &http.Request{Method: d.Request.Method, Header: http.Header{}}
	if wanted != "" {
		r.Header.Set("Range", wanted)
	}
	out := &downloadWriter{w: w, body: newBoundedWriter(w, d.WriteTimeout), header: http.Header{}}
	out.file, _ = d.Content.(*os.File)
	out.header.Set("Content-Type", "application/octet-stream")
	out.header.Set("Content-Disposition", attachment(d.Name))
	out.header.Set("X-Content-Type-Options", "nosniff")
	if tag != "" {
		out.header.Set("ETag", tag)
	}
	content := &watchedContent{ReadSeeker: d.Content}
	http.ServeContent(out, r, "", d.ModTime, content)

	switch {
	case out.refused == http.StatusRequestedRangeNotSatisfiable && content.err == nil:
		return d.unsatisfiable(w, size)
	case content.err != nil:
		return fmt.Errorf("download %s: read: %w", d.Name, content.err)
	case out.refused != 0:
		return fmt.Errorf("download %s: refused with status %d", d.Name, out.refused)
	case out.err != nil:
		return fmt.Errorf("download %s: write: %w", d.Name, out.err)
	}
	return nil
}

func (d Download) unsatisfiable(w http.ResponseWriter, size int64) error {
	w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", size))
	return problem.New(http.StatusRequestedRangeNotSatisfiable,
		"header Range: must be one range of bytes within the %d of the file", size)
}

// singleRange reduces a Range header to what is honoured: one range of bytes. "" is
// the whole file: no header, an unknown unit (which HTTP requires to be ignored) or several
// ranges (which a server may ignore). It reports false for what is no Range at all.
func singleRange(header string) (string, bool) {
	if header == "" {
		return "", true
	}
	unit, ranges, found := strings.Cut(header, "=")
	if !found {
		return "", false
	}
	ranges = strings.Trim(ranges, " \t")
	if !strings.EqualFold(strings.Trim(unit, " \t"), "bytes") || strings.Contains(ranges, ",") {
		return "", true
	}
	first, last, found := strings.Cut(ranges, "-")
	first, firstOK := position(first)
	last, lastOK := position(last)
	if !found || !firstOK || !lastOK || first == "" && last == "" {
		return "", false
	}
	return "bytes=" + first + "-" + last, true
}

// position reduces a position of a range, which is nothing or digits alone
// (ServeContent would take a sign too), to one that fits an integer: there is no
// longer file than the largest of them.
func position(digits string) (string, bool) {
	if strings.Trim(digits, "0123456789") != "" {
		return "", false
	}
	if digits == "" {
		return "", true
	}
	digits = strings.TrimLeft(digits, "0")
	switch {
	case digits == "":
		return "0", true
	case len(digits) > len(endOfFiles):
		return endOfFiles, true
	case len(digits) == len(endOfFiles) && digits > endOfFiles:
		return endOfFiles, true
	}
	return digits, true
}

// attachment is the Content-Disposition (RFC 6266) for a file name: as it is when it
// is printable ASCII, else with a plain fallback and the true name encoded as RFC
// 8187 says.
func attachment(name string) string {
	name = strings.ToValidUTF8(name, "\uFFFD")
	fallback := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '_'
		}
		return r
	}, name)
	value := mime.FormatMediaType("attachment", map[string]string{"filename": fallback})
	if fallback == name {
		return value
	}
	// PathEscape leaves a few characters that the RFC requires to be encoded.
	encoded := strings.NewReplacer("'", "%27", "(", "%28", ")", "%29", "*", "%2A",
		":", "%3A", "@", "%40", "=", "%3D", ",", "%2C", ";", "%3B").Replace(url.PathEscape(name))
	return value + "; filename*=UTF-8''" + encoded
}

// downloadWriter stands between ServeContent and the client. It withholds
// ServeContent's own error answers, which are plain text, and drops a client that
// takes nothing for longer than the timeout.
type downloadWriter struct {
	w       http.ResponseWriter
	body    boundedWriter
	file    *os.File // the content, if it is one
	header  http.Header
	refused int
	err     error
}

func (d *downloadWriter) Header() http.Header { return d.header }

func (d *downloadWriter) WriteHeader(status int) {
	if status >= http.StatusBadRequest {
		d.refused = status
		return
	}
	for key, values := range d.header {
		d.w.Header()[key] = values
	}
	d.w.WriteHeader(status)
}

func (d *downloadWriter) Write(p []byte) (int, error) {
	if d.refused != 0 {
		return len(p), nil
	}
	n, err := d.body.Write(p)
	if err != nil {
		d.err = err
	}
	return n, err
}

// ReadFrom implements [io.ReaderFrom], which ServeContent's copying looks for. The kernel moves a
// file to the connection by itself; all else is copied. Blocks of io.Copy's own size would spend
// more time between the writes than in them.
func (d *downloadWriter) ReadFrom(r io.Reader) (int64, error) {
	rest, bounded := r.(*io.LimitedReader)
	connection, direct := innermost(d.w).(io.ReaderFrom)
	if d.file != nil && bounded && direct && d.refused == 0 {
		n, err := d.sendFile(connection, rest.N)
		rest.N -= n
		return n, err
	}
	block := downloadBlocks.Get().(*[downloadBlock]byte)
	defer downloadBlocks.Put(block)
	return io.CopyBuffer(writerOnly{d}, r, block[:])
}

// sendFile sends size bytes of the file, or those that are left, from where it stands. A client is
// given the timeout for each block, as with writes.
func (d *downloadWriter) sendFile(connection io.ReaderFrom, size int64) (sent int64, err error) {
	for sent < size {
		if err := d.body.extend(); err != nil {
			d.err = err
			return sent, err
		}
		n, err := connection.ReadFrom(io.LimitReader(d.file, min(size-sent, downloadBlock)))
		sent += n
		if response, ok := d.w.(*echo.Response); ok {
			response.Size += n // it counts for the access log, and these have passed it by
		}
		if err != nil {
			d.err = err
			return sent, err
		}
		if n == 0 {
			return sent, nil // the file has become shorter: the caller reports it
		}
	}
	return sent, nil
}

// innermost is net/http's own writer below those that are put around it.
func innermost(w http.ResponseWriter) http.ResponseWriter {
	for {
		outer, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return w
		}
		w = outer.Unwrap()
	}
}

// writerOnly hides ReadFrom from io.CopyBuffer.
type writerOnly struct{ io.Writer }

// watchedContent records a failed read, which ServeContent does not report.
type watchedContent struct {
	io.ReadSeeker
	err error
}

func (c *watchedContent) Read(p []byte) (int, error) {
	n, err := c.ReadSeeker.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	return n, err
}

func (c *watchedContent) Seek(offset int64, whence int) (int64, error) {
	position, err := c.ReadSeeker.Seek(offset, whence)
	if err != nil {
		c.err = err
	}
	return position, err
}

package e2b

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"sandbox.internal/execd/activity"
	"sandbox.internal/execd/files"
	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/listen"
	"sandbox.internal/openapi/serve/respond"
)

// maxUploadNames bounds the paths of one request's files, in bytes: its answer lists them.
const maxUploadNames = 4 << 20

// metadataHeader begins the headers with the metadata of files, which envd 0.6 has.
const metadataHeader = "X-Metadata-"

func (h *handler) registerFiles(add adder) {
	add(http.MethodGet, "/files", h.download)
	add(http.MethodPost, "/files", h.upload)
}

// httpFailure is an error of the operations that do not use Connect.
type httpFailure struct {
	Code    int    `json:"code"` // the status
	Message string `json:"message"`
}

// Error implements error.
func (f *httpFailure) Error() string { return f.Message }

func refuse(status int, format string, args ...any) *httpFailure {
	return &httpFailure{status, fmt.Sprintf(format, args...)}
}

// answerFailure answers with an error, unless the answer has begun: then it is cut.
func (h *handler) answerFailure(c echo.Context, err error) error {
	if c.Response().Committed {
		return err
	}
	failed := h.toHTTPFailure(err)
	return c.JSON(failed.Code, failed)
}

func (h *handler) toHTTPFailure(err error) *httpFailure {
	if own := (*httpFailure)(nil); errors.As(err, &own) {
		return own
	}
	if problem := (*serve.Problem)(nil); errors.As(err, &problem) {
		return refuse(problem.Status, "%s", problem.Message)
	}
	status, known := map[files.Kind]int{
		files.KindInvalid: http.StatusBadRequest, files.KindNotFound: http.StatusNotFound,
		files.KindConflict: http.StatusBadRequest, files.KindPermission: http.StatusForbidden,
		files.KindNoSpace: http.StatusInsufficientStorage,
	}[files.KindOf(err)]
	if known {
		return refuse(status, "%v", err)
	}
	h.Logger.Error().Err(err).Msg("a transfer of a client of E2B failed")
	return refuse(http.StatusInternalServerError, "%v", err)
}

// download answers with a file or a range of it, and never compressed: that costs more than it
// saves.
func (h *handler) download(c echo.Context) error {
	r := c.Request()
	user, failed := accountOf(r, c.QueryParam("username"))
	if failed != nil {
		return h.answerFailure(c, refuse(http.StatusUnauthorized, "%s", failed.Message))
	}
	file, err := h.Files.Open(user.path(c.QueryParam("path")))
	if err != nil {
		return h.answerFailure(c, err)
	}
	defer file.Close() // only read from
	record := h.beginFiles(r, activity.Download, file.Info.Path)
	err = respond.Download{
		Request: r, Name: filepath.Base(file.Info.Path), Tag: file.Tag, ModTime: file.Info.Modified, Content: file.Content,
	}.Serve(c.Response())
	endFiles(record, err)
	if err != nil {
		return h.answerFailure(c, err)
	}
	return nil
}

// uploadedFile is an entry of the answer to an upload.
type uploadedFile struct {
	Name string `json:"name"`
	Path string `json:"path"`
	Type string `json:"type"`
}

// upload puts the files of a request in place, each when it has arrived completely.
func (h *handler) upload(c echo.Context) error {
	listen.DeadlinePerPart(c.Request())
	u := &upload{handler: h, r: c.Request(), done: []uploadedFile{}}
	if err := u.run(c.QueryParam("username"), c.QueryParam("path")); err != nil {
		return h.answerFailure(c, err)
	}
	return c.JSON(http.StatusOK, u.done)
}

// upload is one request with files.
type upload struct {
	*handler
	r     *http.Request
	user  account
	body  io.Reader
	done  []uploadedFile
	names int // bytes of their paths
}

func (u *upload) run(username, path string) error {
	for name := range u.r.Header {
		if strings.HasPrefix(name, metadataHeader) {
			return refuse(http.StatusBadRequest, "header %.128s: metadata of files is not supported", name)
		}
	}
	var failed *failure
	if u.user, failed = accountOf(u.r, username); failed != nil {
		return refuse(http.StatusUnauthorized, "%s", failed.Message)
	}
	if err := u.decode(); err != nil {
		return err
	}
	media, params, err := mime.ParseMediaType(u.r.Header.Get("Content-Type"))
	switch {
	case err == nil && media == "application/octet-stream":
		if path == "" {
			return refuse(http.StatusBadRequest, "query parameter path: is required")
		}
		return u.file(path, u.body)
	case err == nil && strings.HasPrefix(media, "multipart/"):
		return u.form(params["boundary"], path)
	}
	return refuse(http.StatusBadRequest, "header Content-Type: must be multipart/form-data or application/octet-stream")
}

// decode finds the body of the request, which may be compressed as a whole.
func (u *upload) decode() error {
	u.body = u.r.Body
	switch encoding := strings.ToLower(strings.TrimSpace(u.r.Header.Get("Content-Encoding"))); encoding {
	case "", "identity":
		return nil
	case "gzip":
		decoder, err := gzip.NewReader(u.r.Body)
		if err != nil {
			return broken(err)
		}
		u.body = decoder
		return nil
	default:
		return refuse(http.StatusBadRequest, "header Content-Encoding %.64q: must be gzip", encoding)
	}
}

// form puts the files of a form in place. Only for a single one path says where.
func (u *upload) form(boundary, path string) error {
	if boundary == "" {
		return refuse(http.StatusBadRequest, "header Content-Type: must name a boundary")
	}
	// The last boundary may be without its end of line. What ends without one has been cut, which
	// the reader would take for the end of the form.
	form := multipart.NewReader(io.MultiReader(u.body, strings.NewReader("\r\n"), cut{}), boundary)
	seen := make(map[string]bool)
	for {
		part, err := form.NextRawPart()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return broken(err)
		}
		field, filename, named := disposition(part.Header.Get("Content-Disposition"))
		if field != "file" {
			continue
		}
		target := path
		if target == "" {
			if target = filename; !named || target == "" {
				return refuse(http.StatusBadRequest, "body/file: the part must have a filename, or the request a path")
			}
		}
		resolved := u.user.path(target)
		if seen[resolved] {
			return refuse(http.StatusBadRequest, "body/file: several files have the path %q; the first is in place", resolved)
		}
		seen[resolved] = true
		if err := u.file(target, part); err != nil {
			return err
		}
	}
}

// file puts one file in place.
func (u *upload) file(name string, from io.Reader) (err error) {
	path := u.user.path(name)
	if u.names += len(path); u.names > maxUploadNames {
		return refuse(http.StatusRequestEntityTooLarge, "body: the paths of all files must be at most %d bytes",
			maxUploadNames)
	}
	record := u.beginFiles(u.r, activity.Upload, path)
	defer func() { endFiles(record, err) }()
	owner := u.user.owner()
	target, err := u.Files.Begin(files.UploadMeta{
		Path: path,
		Permission: files.Permission{
			Owner: strconv.FormatUint(uint64(owner.UID), 10), Group: strconv.FormatUint(uint64(owner.GID), 10),
		},
		Parents: &owner,
	})
	if err != nil {
		return err
	}
	defer target.Abort()
	if _, err := io.Copy(target, content{from}); err != nil {
		return err
	}
	if _, err := target.Commit(); err != nil {
		return err
	}
	u.done = append(u.done, uploadedFile{Name: filepath.Base(path), Path: path, Type: "file"})
	return nil
}

// content is what comes from the client. Its errors are the client's, so that they differ from
// those of the disk that io.Copy writes to.
type content struct{ from io.Reader }

func (c content) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	if err != nil && err != io.EOF {
		err = broken(err)
	}
	return n, err
}

func broken(err error) error {
	return refuse(http.StatusBadRequest, "body: did not arrive completely, or is not what its headers say: %v", err)
}

// cut is the end of what has no end of its own.
type cut struct{}

func (cut) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// formEscapes are what clients write for the characters that a quoted name of a form cannot have
// (HTML, "Multipart form data").
var formEscapes = strings.NewReplacer("%22", `"`, "%0D", "\r", "%0A", "\n", "%0d", "\r", "%0a", "\n")

// disposition returns the name of a field of a form, and the whole name of its file if it has one:
// the package mime/multipart would leave the directories out.
func disposition(header string) (field, filename string, named bool) {
	_, rest, _ := strings.Cut(header, ";")
	extended := false
	for rest != "" {
		var key, value string
		key, value, rest = parameter(rest)
		switch key {
		case "name":
			field = formEscapes.Replace(value)
		case "filename":
			if !extended {
				filename, named = formEscapes.Replace(value), true
			}
		case "filename*": // RFC 8187
			if charset, text, ok := strings.Cut(value, "'"); ok && strings.EqualFold(charset, "UTF-8") {
				_, text, _ = strings.Cut(text, "'")
				if decoded, err := url.PathUnescape(text); err == nil {
					filename, named, extended = decoded, true, true
				}
			}
		}
	}
	return field, filename, named
}

// parameter reads the first of the parameters of a header. In a quoted one, a backslash escapes a
// quote or a backslash, and is a character of its own before any other.
func parameter(from string) (key, value, rest string) {
	key, rest, _ = strings.Cut(from, "=")
	key = strings.ToLower(strings.Trim(key, " \t;"))
	rest = strings.TrimLeft(rest, " \t")
	if !strings.HasPrefix(rest, `"`) {
		value, rest, _ = strings.Cut(rest, ";")
		return key, strings.TrimRight(value, " \t"), rest
	}
	var text strings.Builder
	for i := 1; i < len(rest); i++ {
		switch at := rest[i]; {
		case at == '"':
			_, after, _ := strings.Cut(rest[i+1:], ";")
			return key, text.String(), after
		case at == '\\' && i+1 < len(rest) && (rest[i+1] == '"' || rest[i+1] == '\\') && i+2 < len(rest):
			i++
			text.WriteByte(rest[i])
		default:
			text.WriteByte(at)
		}
	}
	return key, text.String(), "" // without an end
}

package e2b

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"sandbox.internal/execd/activity"
	"sandbox.internal/execd/files"
	"sandbox.internal/execd/internal/watch"
	"sandbox.internal/openapi/serve/respond"
)

// filesystem answers filesystem.Filesystem. It runs with the rights of execd; what it makes belongs
// to the user of the request.
type filesystem struct {
	*handler
	watchers watchers
}

func (h *handler) registerFilesystem(add adder) {
	f := &filesystem{handler: h, watchers: watchers{known: make(map[string]*watcher)}}
	procedure := func(name string, handle echo.HandlerFunc) {
		add(http.MethodPost, "/filesystem.Filesystem/"+name, handle)
	}
	procedure("Stat", unary(h, f.stat))
	procedure("ListDir", f.listDir)
	procedure("MakeDir", unary(h, f.makeDir))
	procedure("Move", unary(h, f.move))
	procedure("Remove", unary(h, f.remove))
	procedure("WatchDir", streaming(h, f.watchDir))
	procedure("CreateWatcher", unary(h, f.createWatcher))
	procedure("GetWatcherEvents", unary(h, f.getWatcherEvents))
	procedure("RemoveWatcher", unary(h, f.removeWatcher))
}

// fileType is the enum filesystem.FileType.
type fileType string

const (
	fileTypeFile      fileType = "FILE_TYPE_FILE"
	fileTypeDirectory fileType = "FILE_TYPE_DIRECTORY"
	fileTypeSymlink   fileType = "FILE_TYPE_SYMLINK"
)

// fileTypes are the types that the enum has. A socket, FIFO or device has none.
var fileTypes = map[files.Type]fileType{
	files.TypeFile: fileTypeFile, files.TypeDirectory: fileTypeDirectory, files.TypeSymlink: fileTypeSymlink,
}

// entryInfo is the message filesystem.EntryInfo.
type entryInfo struct {
	Name          string   `json:"name,omitempty"`
	Type          fileType `json:"type,omitempty"` // of what a link leads to
	Path          string   `json:"path,omitempty"`
	Size          int64    `json:"size,omitempty,string"`
	Mode          uint32   `json:"mode,omitempty"` // permission bits, of what a link leads to
	Permissions   string   `json:"permissions,omitempty"`
	Owner         string   `json:"owner,omitempty"`
	Group         string   `json:"group,omitempty"`
	ModifiedTime  string   `json:"modifiedTime,omitempty"`
	SymlinkTarget string   `json:"symlinkTarget,omitempty"` // where a link leads to; its own path when that is nowhere
}

// pathMessage is a request that names a path.
type pathMessage struct {
	Path string `json:"path"`
}

// entryMessage is an answer with an entry.
type entryMessage struct {
	Entry *entryInfo `json:"entry"`
}

func toEntry(info files.Info) *entryInfo {
	mode := modeOf(info)
	entry := &entryInfo{
		Name: filepath.Base(info.Path), Type: fileTypes[info.Type], Path: info.Path, Size: info.Size,
		Mode: uint32(mode.Perm()), Permissions: mode.String(), Owner: info.Owner, Group: info.Group,
		ModifiedTime: timestamp(info.Modified),
	}
	if info.Type == files.TypeSymlink {
		entry.SymlinkTarget = info.Path
		if target, err := filepath.EvalSymlinks(info.Path); err == nil {
			entry.SymlinkTarget = target
		}
		if at, err := os.Stat(info.Path); err == nil {
			entry.Mode, entry.Type = uint32(at.Mode().Perm()), ""
			switch {
			case at.Mode().IsRegular():
				entry.Type = fileTypeFile
			case at.IsDir():
				entry.Type = fileTypeDirectory
			}
		}
	}
	return entry
}

// modeOf returns a mode as Go writes it, which envd reports.
func modeOf(info files.Info) fs.FileMode {
	bits, err := strconv.ParseUint(strconv.Itoa(info.Mode), 8, 32)
	if err != nil {
		return 0 // the engine writes octal digits
	}
	mode := fs.FileMode(bits & 0o777)
	for bit, flag := range map[uint64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if bits&bit != 0 {
			mode |= flag
		}
	}
	switch info.Type {
	case files.TypeDirectory:
		mode |= fs.ModeDir
	case files.TypeSymlink:
		mode |= fs.ModeSymlink
	case files.TypeOther:
		if at, err := os.Lstat(info.Path); err == nil {
			mode |= at.Mode().Type()
		}
	}
	return mode
}

// timestamp writes a time as Protocol Buffers do in JSON: clients refuse a fraction of one or two
// digits.
func timestamp(t time.Time) string {
	if t.Nanosecond() == 0 {
		return t.UTC().Format(time.RFC3339)
	}
	return t.UTC().Format("2006-01-02T15:04:05.000000000Z07:00")
}

func (f *filesystem) entry(path string) (*entryMessage, error) {
	infos, err := f.Files.Info([]string{path})
	if err != nil {
		return nil, fileFailure(err)
	}
	return &entryMessage{toEntry(infos[path])}, nil
}

func (f *filesystem) stat(c echo.Context, in *pathMessage) (*entryMessage, error) {
	user, failed := accountOf(c.Request(), "")
	if failed != nil {
		return nil, failed
	}
	return f.entry(user.path(in.Path))
}

type listDirRequest struct {
	Path  string `json:"path"`
	Depth uint32 `json:"depth"`
}

// listDir answers while it reads: a directory may hold more than fits into memory. What fails
// before the first part is sent has an answer of its own; after that the connection is cut.
func (f *filesystem) listDir(c echo.Context) error {
	in, failed := readUnary[listDirRequest](c)
	var user account
	if failed == nil {
		user, failed = accountOf(c.Request(), "")
	}
	if failed != nil {
		return c.JSON(statuses[failed.Code], failed)
	}
	header := c.Response().Header()
	header.Set("Content-Type", mediaUnary)
	out := bufio.NewWriterSize(respond.BoundedWriter(c.Response(), 0), 32<<10)
	before := `{"entries":[`
	err := f.Files.List(c.Request().Context(), user.path(in.Path), int(in.Depth), func(info files.Info) error {
		encoded, err := json.Marshal(toEntry(info))
		if err != nil {
			return err
		}
		out.WriteString(before) // bufio.Writer remembers its first error
		before = ","
		_, err = out.Write(encoded)
		return err
	})
	switch {
	case err != nil && c.Response().Committed:
		return err
	case err != nil:
		header.Del("Content-Type")
		failed := f.toFailure(fileFailure(err))
		return c.JSON(statuses[failed.Code], failed)
	case before != ",":
		out.WriteString(before)
	}
	out.WriteString("]}")
	return out.Flush()
}

func (f *filesystem) makeDir(c echo.Context, in *pathMessage) (*entryMessage, error) {
	user, failed := accountOf(c.Request(), "")
	if failed != nil {
		return nil, failed
	}
	path := user.path(in.Path)
	var made bool
	err := f.recorded(c, activity.Mkdir, path, func() (err error) {
		made, err = f.Files.MakeDirectory(path, user.owner())
		return err
	})
	switch {
	case err != nil:
		return nil, fileFailure(err)
	case !made:
		return nil, failf(codeAlreadyExists, "%s: exists already", path)
	}
	return f.entry(path)
}

type moveRequest struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
}

func (f *filesystem) move(c echo.Context, in *moveRequest) (*entryMessage, error) {
	user, failed := accountOf(c.Request(), "")
	if failed != nil {
		return nil, failed
	}
	source, destination := user.path(in.Source), user.path(in.Destination)
	err := f.recorded(c, activity.Move, source+" -> "+destination, func() error {
		return f.Files.MoveOver(c.Request().Context(), source, destination, user.owner())
	})
	if err != nil {
		return nil, fileFailure(err)
	}
	return f.entry(destination)
}

func (f *filesystem) remove(c echo.Context, in *pathMessage) (*empty, error) {
	user, failed := accountOf(c.Request(), "")
	if failed != nil {
		return nil, failed
	}
	path := user.path(in.Path)
	err := f.recorded(c, activity.Delete, path, func() error {
		return f.Files.Remove(c.Request().Context(), path)
	})
	if err != nil {
		return nil, fileFailure(err)
	}
	return &empty{}, nil
}

// owner is whom new files and directories belong to.
func (a account) owner() files.Owner { return files.Owner{UID: a.UID, GID: a.GID} }

// fileFailure gives an error of the file engines its code.
func fileFailure(err error) error {
	switch {
	case errors.Is(err, watch.ErrNotFound):
		return failf(codeNotFound, "%v", err)
	case errors.Is(err, watch.ErrPermission):
		return failf(codePermissionDenied, "%v", err)
	case errors.Is(err, watch.ErrInvalid):
		return failf(codeInvalidArgument, "%v", err)
	case errors.Is(err, watch.ErrLimit):
		return failf(codeResourceExhausted, "%v", err)
	}
	code, known := map[files.Kind]errorCode{
		files.KindInvalid: codeInvalidArgument, files.KindNotFound: codeNotFound,
		files.KindConflict: codeFailedPrecondition, files.KindPermission: codePermissionDenied,
		// Clients take resource_exhausted for a limit of requests.
		files.KindNoSpace: codeInternal,
	}[files.KindOf(err)]
	if !known {
		return err
	}
	return failf(code, "%v", err)
}

// beginFiles records the beginning of an operation on files.
func (h *handler) beginFiles(r *http.Request, kind activity.Kind, text string) *activity.Operation {
	record := h.record(r, kind)
	record.Begin("", text)
	return record
}

// endFiles records the end of an operation on files.
func endFiles(record *activity.Operation, err error) {
	if err != nil {
		record.End(activity.Result{Failed: true, Error: err.Error()})
		return
	}
	record.End(activity.Result{})
}

// recorded records an operation on files, and returns its error.
func (h *handler) recorded(c echo.Context, kind activity.Kind, text string, do func() error) error {
	record := h.beginFiles(c.Request(), kind, text)
	err := do()
	endFiles(record, err)
	return err
}

// relative returns the name of a path below the root of a watch, "." for the root.
func relative(root, path string) string {
	if path == root {
		return "."
	}
	return strings.TrimPrefix(strings.TrimPrefix(path, root), "/")
}

// watchable returns the path of a directory to watch.
func watchable(r *http.Request, in *watchRequest) (string, *failure) {
	switch {
	case in.IncludeEntry:
		return "", failf(codeInvalidArgument, "includeEntry: is not supported")
	case in.AllowNetworkMounts:
		return "", failf(codeInvalidArgument, "allowNetworkMounts: is not supported")
	case strings.ContainsRune(in.Path, 0):
		return "", failf(codeInvalidArgument, "path: must not contain a NUL byte")
	}
	user, failed := accountOf(r, "")
	if failed != nil {
		return "", failed
	}
	return user.path(in.Path), nil
}

// openWatch begins to watch a directory.
func openWatch(path string, options watch.Options) (*watch.Watch, error) {
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		return nil, failf(codeInvalidArgument, "%s: is not a directory", path)
	}
	options.Path, options.Clock = path, time.Now
	opened, err := watch.Open(options) // which reports what os.Stat could not
	if err != nil {
		return nil, fileFailure(err)
	}
	return opened, nil
}

// untilTimeout returns a context that also ends when the client's time for a stream is over.
func untilTimeout(ctx context.Context, r *http.Request) (context.Context, context.CancelFunc, *failure) {
	limit, failed := timeout(r)
	if failed != nil || limit == 0 {
		ctx, cancel := context.WithCancel(ctx)
		return ctx, cancel, failed
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, failf(codeDeadlineExceeded, "the time of the stream is over"))
	return ctx, cancel, nil
}

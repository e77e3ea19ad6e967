package api

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"unicode/utf8"

	"sandbox.internal/execd/activity"
	"sandbox.internal/execd/files"
	gen "sandbox.internal/gen/execd"
	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/respond"
)

func (h *handlers) GetFilesInfo(_ context.Context, request gen.GetFilesInfoRequestObject) (gen.GetFilesInfoResponseObject, error) {
	infos, err := h.files.Info(request.Params.Path)
	if err != nil {
		return nil, err
	}
	out := make(gen.GetFilesInfo200JSONResponse, len(infos))
	for path, info := range infos {
		out[path] = toFileInfo(info)
	}
	return out, nil
}

func (h *handlers) DeleteFiles(ctx context.Context, request gen.DeleteFilesRequestObject) (gen.DeleteFilesResponseObject, error) {
	err := h.recorded(ctx, activity.Delete, slices.Values(request.Params.Path), func() error {
		return h.files.RemoveFiles(request.Params.Path)
	})
	if err != nil {
		return nil, err
	}
	return gen.DeleteFiles200JSONResponse{}, nil
}

func (h *handlers) DeleteDirectories(ctx context.Context, request gen.DeleteDirectoriesRequestObject) (gen.DeleteDirectoriesResponseObject, error) {
	err := h.recorded(ctx, activity.Delete, slices.Values(request.Params.Path), func() error {
		return h.files.RemoveDirectories(ctx, request.Params.Path)
	})
	if err != nil {
		return nil, err
	}
	return gen.DeleteDirectories200JSONResponse{}, nil
}

func (h *handlers) MakeDirectories(ctx context.Context, request gen.MakeDirectoriesRequestObject) (gen.MakeDirectoriesResponseObject, error) {
	wanted, err := fromPermissions(*request.Body)
	if err != nil {
		return nil, err
	}
	err = h.recorded(ctx, activity.Mkdir, maps.Keys(wanted), func() error { return h.files.MakeDirectories(wanted) })
	if err != nil {
		return nil, err
	}
	return gen.MakeDirectories200JSONResponse{}, nil
}

func (h *handlers) SetPermissions(ctx context.Context, request gen.SetPermissionsRequestObject) (gen.SetPermissionsResponseObject, error) {
	wanted, err := fromPermissions(*request.Body)
	if err != nil {
		return nil, err
	}
	err = h.recorded(ctx, activity.Chmod, maps.Keys(wanted), func() error { return h.files.SetPermissions(wanted) })
	if err != nil {
		return nil, err
	}
	return gen.SetPermissions200JSONResponse{}, nil
}

func (h *handlers) MoveFiles(ctx context.Context, request gen.MoveFilesRequestObject) (gen.MoveFilesResponseObject, error) {
	entries := make([]files.MoveEntry, len(*request.Body))
	for i, entry := range *request.Body {
		entries[i] = files.MoveEntry{Src: entry.Src, Dest: entry.Dest}
	}
	err := h.recorded(ctx, activity.Move, moves(entries), func() error { return h.files.Move(ctx, entries) })
	if err != nil {
		return nil, err
	}
	return gen.MoveFiles200JSONResponse{}, nil
}

func (h *handlers) ReplaceInFiles(ctx context.Context, request gen.ReplaceInFilesRequestObject) (gen.ReplaceInFilesResponseObject, error) {
	wanted := make(map[string]files.Replacement, len(*request.Body))
	for path, replacement := range *request.Body {
		wanted[path] = files.Replacement{Old: replacement.Old, New: replacement.New}
	}
	err := h.recorded(ctx, activity.Replace, maps.Keys(wanted), func() error { return h.files.Replace(wanted) })
	if err != nil {
		return nil, err
	}
	return gen.ReplaceInFiles200JSONResponse{}, nil
}

func (h *handlers) SearchFiles(ctx context.Context, request gen.SearchFilesRequestObject) (gen.SearchFilesResponseObject, error) {
	return fileInfos(func(found func(files.Info) error) error {
		return h.files.Search(ctx, request.Params.Path, value(request.Params.Pattern), found)
	}), nil
}

func (h *handlers) ListDirectory(ctx context.Context, request gen.ListDirectoryRequestObject) (gen.ListDirectoryResponseObject, error) {
	return fileInfos(func(found func(files.Info) error) error {
		return h.files.List(ctx, request.Params.Path, value(request.Params.Depth), found)
	}), nil
}

// fileInfos is the answer with what a walk finds. It is sent while the walk goes on: there may be
// millions of files.
type fileInfos func(found func(files.Info) error) error

// VisitSearchFilesResponse implements the generated interface.
func (walk fileInfos) VisitSearchFilesResponse(w http.ResponseWriter) error { return walk.serve(w) }

// VisitListDirectoryResponse implements the generated interface.
func (walk fileInfos) VisitListDirectoryResponse(w http.ResponseWriter) error { return walk.serve(w) }

// serve writes the answer. What fails before the buffer is full for the first time has an answer of
// its own; after that the connection is cut, so that the client does not take a part for the whole.
func (walk fileInfos) serve(w http.ResponseWriter) error {
	w.Header().Set("Content-Type", "application/json")
	out := bufio.NewWriterSize(respond.BoundedWriter(w, 0), 32<<10)
	separator := byte('[')
	err := walk(func(info files.Info) error {
		encoded, err := json.Marshal(toFileInfo(info))
		if err != nil {
			return err
		}
		out.WriteByte(separator) // bufio.Writer remembers its first error
		separator = ','
		_, err = out.Write(encoded)
		return err
	})
	if err != nil {
		return err
	}
	if separator == '[' {
		out.WriteByte('[')
	}
	out.WriteString("]\n")
	return out.Flush()
}

func (h *handlers) DownloadFile(ctx context.Context, request gen.DownloadFileRequestObject) (gen.DownloadFileResponseObject, error) {
	file, err := h.files.Open(request.Params.Path)
	if err != nil {
		return nil, err
	}
	return download{request: serve.Request(ctx), file: file, record: h.begin(ctx, activity.Download, file.Info.Path)}, nil
}

// download is the answer with a file or a range of it.
type download struct {
	request *http.Request
	file    *files.Download
	record  *activity.Operation
}

// VisitDownloadFileResponse implements the generated interface.
func (d download) VisitDownloadFileResponse(w http.ResponseWriter) (err error) {
	defer func() { finish(d.record, err) }()
	defer d.file.Close() // only read from
	return respond.Download{
		Request: d.request,
		Name:    filepath.Base(d.file.Info.Path),
		Tag:     d.file.Tag,
		ModTime: d.file.Info.Modified,
		Content: d.file.Content,
	}.Serve(w)
}

// fromPermissions converts permissions by path. Two that name the same path are refused.
func fromPermissions(in map[string]gen.Permission) (map[string]files.Permission, error) {
	out := make(map[string]files.Permission, len(in))
	for text, p := range in {
		path, err := exactPath("body/"+text, text, p.RawPath)
		if err != nil {
			return nil, err
		}
		if _, twice := out[path]; twice {
			return nil, serve.Invalid("body/%s/raw_path: must not be the path of another member", text)
		}
		out[path] = files.Permission{Owner: value(p.Owner), Group: value(p.Group), Mode: p.Mode}
	}
	return out, nil
}

// exactPath returns the path that a request means: its bytes where JSON cannot hold them, else its
// text.
func exactPath(field, text string, exact *gen.ExactPath) (string, error) {
	if exact == nil {
		return text, nil
	}
	path, err := base64.StdEncoding.DecodeString(*exact)
	if err != nil || len(path) == 0 {
		return "", serve.Invalid("%s/raw_path: must be a path in base64", field)
	}
	return string(path), nil
}

func toFileInfo(info files.Info) gen.FileInfo {
	out := gen.FileInfo{
		Path:       info.Path,
		RawPath:    rawPath(info.Path),
		Size:       info.Size,
		ModifiedAt: info.Modified.UTC(),
		CreatedAt:  info.Created.UTC(),
		Owner:      info.Owner,
		Group:      info.Group,
		Mode:       info.Mode,
		Type:       gen.FileType(info.Type),
	}
	if info.Target != "" {
		out.LinkTarget = &info.Target
		if !utf8.ValidString(info.Target) {
			out.RawLinkTarget = []byte(info.Target)
		}
	}
	return out
}

// rawPath returns the bytes of a path that JSON cannot hold as they are, nil for any other.
func rawPath(path string) *gen.RawPath {
	if utf8.ValidString(path) {
		return nil
	}
	return new(gen.RawPath(path))
}

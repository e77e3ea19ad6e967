package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"unicode/utf8"

	"sandbox.internal/clients/go/execd"
)

// Files works with the files of a sandbox. Paths are absolute, relative to the sandbox's working
// directory, or begin with ~/ for the home of the daemon's user. They are bytes, and need not be
// UTF-8, but for those of Move and Replace.
type Files struct{ box *Sandbox }

// Info returns the facts of files and directories, by path.
func (f Files) Info(ctx context.Context, paths ...string) (map[string]FileInfo, error) {
	var infos execd.FileInfoByPath
	err := f.box.client.call(ctx, repeatable, &infos,
		func(ctx context.Context) (*http.Response, error) {
			return f.box.daemon.GetFilesInfo(ctx, &execd.GetFilesInfoParams{Path: paths})
		})
	exact := make(map[string]FileInfo, len(infos))
	for _, path := range paths {
		// A path that is not UTF-8 is answered as JSON can hold it.
		if info, ok := infos[string([]rune(path))]; ok {
			exact[path] = exactInfo(info)
		}
	}
	return exact, err
}

// exactInfo returns facts whose path has the bytes that it has in the sandbox.
func exactInfo(info FileInfo) FileInfo {
	if info.RawPath != nil {
		info.Path, info.RawPath = string(*info.RawPath), nil
	}
	return info
}

func exactInfos(infos []FileInfo) []FileInfo {
	for i, info := range infos {
		infos[i] = exactInfo(info)
	}
	return infos
}

// maxInfos bounds a list of files. One of the contract that fits into the default
// [Options].MaxAnswer is shorter.
const maxInfos = 1 << 20

// infoList is a list that is decoded up to maxInfos: a list of empty values would take a hundred
// times the memory of its text.
type infoList []FileInfo

// UnmarshalJSON implements [json.Unmarshaler].
func (l *infoList) UnmarshalJSON(data []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	if _, err := decoder.Token(); err != nil {
		return err
	}
	*l = infoList{}
	for decoder.More() {
		if len(*l) == maxInfos {
			return fmt.Errorf("%w: more than %d files", errTooLarge, maxInfos)
		}
		var info FileInfo
		if err := decoder.Decode(&info); err != nil {
			return err
		}
		*l = append(*l, info)
	}
	return nil
}

// List returns what a directory holds, so many levels deep; 1 is its own entries.
func (f Files) List(ctx context.Context, path string, depth int) ([]FileInfo, error) {
	var infos infoList
	err := f.box.client.call(ctx, repeatable, &infos,
		func(ctx context.Context) (*http.Response, error) {
			return f.box.daemon.ListDirectory(ctx,
				&execd.ListDirectoryParams{Path: path, Depth: optional(depth)})
		})
	return exactInfos(infos), err
}

// Search returns the files below a directory that match a glob: one with a slash is matched against
// the path relative to the directory, one without against the name.
func (f Files) Search(ctx context.Context, path, pattern string) ([]FileInfo, error) {
	var infos infoList
	err := f.box.client.call(ctx, repeatable, &infos,
		func(ctx context.Context) (*http.Response, error) {
			return f.box.daemon.SearchFiles(ctx,
				&execd.SearchFilesParams{Path: path, Pattern: optional(pattern)})
		})
	return exactInfos(infos), err
}

// Replace replaces every occurrence of a text in files, by path.
func (f Files) Replace(ctx context.Context, replacements map[string]Replacement) error {
	for path := range replacements {
		if err := requireText(path); err != nil {
			return err
		}
	}
	return f.box.client.call(ctx, once, nil, func(ctx context.Context) (*http.Response, error) {
		return f.box.daemon.ReplaceInFiles(ctx, replacements)
	})
}

// Move moves files and directories, in order. Existing files are not overwritten.
func (f Files) Move(ctx context.Context, moves ...Move) error {
	for _, move := range moves {
		if err := requireText(move.Src, move.Dest); err != nil {
			return err
		}
	}
	return f.box.client.call(ctx, once, nil, func(ctx context.Context) (*http.Response, error) {
		return f.box.daemon.MoveFiles(ctx, moves)
	})
}

// requireText refuses paths that JSON cannot hold as they are: they would arrive as others.
func requireText(paths ...string) error {
	for _, path := range paths {
		if !utf8.ValidString(path) {
			return fmt.Errorf("the path %q is not UTF-8", path)
		}
	}
	return nil
}

// Delete removes files, all or none of them.
func (f Files) Delete(ctx context.Context, paths ...string) error {
	return f.box.client.call(ctx, once, nil, func(ctx context.Context) (*http.Response, error) {
		return f.box.daemon.DeleteFiles(ctx, &execd.DeleteFilesParams{Path: paths})
	})
}

// MakeDirectory creates a directory and its missing parents. An existing directory only gets the
// permission in o.
func (f Files) MakeDirectory(ctx context.Context, path string, o *WriteOptions) error {
	permission, err := o.permission(path)
	if err != nil {
		return err
	}
	permissions := execd.PermissionByPath{path: permission}
	return f.box.client.call(ctx, repeatable, nil, func(ctx context.Context) (*http.Response, error) {
		return f.box.daemon.MakeDirectories(ctx, permissions)
	})
}

// DeleteDirectory removes directories with everything in them.
func (f Files) DeleteDirectory(ctx context.Context, paths ...string) error {
	return f.box.client.call(ctx, once, nil, func(ctx context.Context) (*http.Response, error) {
		return f.box.daemon.DeleteDirectories(ctx, &execd.DeleteDirectoriesParams{Path: paths})
	})
}

// SetPermissions changes owners, groups and modes, by path.
func (f Files) SetPermissions(ctx context.Context, permissions map[string]Permission) error {
	exact := make(execd.PermissionByPath, len(permissions))
	for path, options := range permissions {
		permission, err := options.permission(path)
		if err != nil {
			return err
		}
		if text := string([]rune(path)); text != path {
			// A member's name only has to differ from the others, as its path is in the value.
			path = fmt.Sprintf("%s#%d", text, len(exact))
		}
		exact[path] = permission
	}
	return f.box.client.call(ctx, repeatable, nil, func(ctx context.Context) (*http.Response, error) {
		return f.box.daemon.SetPermissions(ctx, exact)
	})
}

// Watch yields what happens to a file or directory, and with recursive to everything below it. The
// first event is FileEventReady. It ends when the path is removed or renamed, which is the last
// event, or with FileEventError. A watch cannot be resumed: a cut connection, or the end of the
// daemon, is a [*StreamError], after which the files are to be read again.
func (f Files) Watch(ctx context.Context, path string, recursive bool) iter.Seq2[FileEvent, error] {
	stream := events(ctx, &follower{
		client: f.box.client, what: "watch of " + path, once: true, endless: true,
		open: func(ctx context.Context, _ string) (*http.Response, error) {
			return f.box.daemon.WatchFiles(ctx,
				&execd.WatchFilesParams{Path: path, Recursive: optional(recursive)})
		},
	}, func(e FileEvent) bool { return e.Type == execd.FileEventTypePing })
	return func(yield func(FileEvent, error) bool) {
		watched := "" // as the daemon names it
		for event, err := range stream {
			if !yield(event, err) || event.Type == FileEventError {
				return
			}
			switch event.Type {
			case FileEventReady:
				watched = deref(event.Path)
			case FileEventRemove, FileEventRename:
				if deref(event.Path) == watched {
					return
				}
			}
		}
	}
}

package sandbox

import (
	"context"
	"iter"
	"net/http"

	"sandbox.internal/gen/execd"
)

// Files works with the files of a sandbox. Paths are absolute, relative to the sandbox's working
// directory, or begin with ~/ for the home of the daemon's user.
type Files struct{ box *Sandbox }

// Info returns the facts of files and directories, by path.
func (f Files) Info(ctx context.Context, paths ...string) (map[string]FileInfo, error) {
	var infos execd.FileInfoByPath
	err := f.box.client.call(ctx, repeatable, &infos,
		func(ctx context.Context) (*http.Response, error) {
			return f.box.daemon.GetFilesInfo(ctx, &execd.GetFilesInfoParams{Path: paths})
		})
	return infos, err
}

// List returns what a directory holds, so many levels deep; 1 is its own entries.
func (f Files) List(ctx context.Context, path string, depth int) ([]FileInfo, error) {
	var infos []FileInfo
	err := f.box.client.call(ctx, repeatable, &infos,
		func(ctx context.Context) (*http.Response, error) {
			return f.box.daemon.ListDirectory(ctx,
				&execd.ListDirectoryParams{Path: path, Depth: optional(depth)})
		})
	return infos, err
}

// Search returns the files below a directory that match a glob: one with a slash is matched against
// the path relative to the directory, one without against the name.
func (f Files) Search(ctx context.Context, path, pattern string) ([]FileInfo, error) {
	var infos []FileInfo
	err := f.box.client.call(ctx, repeatable, &infos,
		func(ctx context.Context) (*http.Response, error) {
			return f.box.daemon.SearchFiles(ctx,
				&execd.SearchFilesParams{Path: path, Pattern: optional(pattern)})
		})
	return infos, err
}

// Replace replaces every occurrence of a text in files, by path.
func (f Files) Replace(ctx context.Context, replacements map[string]Replacement) error {
	return f.box.client.call(ctx, once, nil, func(ctx context.Context) (*http.Response, error) {
		return f.box.daemon.ReplaceInFiles(ctx, replacements)
	})
}

// Move moves files and directories, in order. Nothing is ever overwritten.
func (f Files) Move(ctx context.Context, moves ...Move) error {
	return f.box.client.call(ctx, once, nil, func(ctx context.Context) (*http.Response, error) {
		return f.box.daemon.MoveFiles(ctx, moves)
	})
}

// Delete removes files, all or none of them.
func (f Files) Delete(ctx context.Context, paths ...string) error {
	return f.box.client.call(ctx, once, nil, func(ctx context.Context) (*http.Response, error) {
		return f.box.daemon.DeleteFiles(ctx, &execd.DeleteFilesParams{Path: paths})
	})
}

// MakeDirectory creates a directory and its missing parents. One that exists only gets what o says.
func (f Files) MakeDirectory(ctx context.Context, path string, o *WriteOptions) error {
	options := deref(o)
	permissions := execd.PermissionByPath{path: {
		Owner: optional(options.Owner), Group: optional(options.Group), Mode: options.Mode,
	}}
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
	return f.box.client.call(ctx, repeatable, nil, func(ctx context.Context) (*http.Response, error) {
		return f.box.daemon.SetPermissions(ctx, permissions)
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

package sshserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pkg/sftp"

	sandbox "sandbox.internal/clients/go"
)

const (
	// maxLinks is how many symbolic links lead from one path to another at most, as the kernel has
	// it.
	maxLinks = 40
	// maxSteps bounds how many names are looked at to follow them.
	maxSteps = 256
	// toolTime and toolOutput bound a program of the sandbox that does what the daemon has no
	// operation for.
	toolTime   = time.Minute
	toolOutput = 4 << 10
	// umask is for the modes of new files.
	umask = 0o022
)

// serveFiles serves SFTP with the files of the sandbox, as the daemon's own user.
func (s *session) serveFiles(ctx context.Context) (int, error) {
	f := &files{ctx: ctx, box: s.Sandbox, writers: map[string]*writer{}, accounts: &accounts{ctx: ctx, box: s.Sandbox}}
	home, err := f.info("~")
	if err != nil {
		return notKnown, err
	}
	server := sftp.NewRequestServer(s.channel, sftp.Handlers{FileGet: f, FilePut: f, FileCmd: f, FileList: f},
		sftp.WithStartDirectory(home.Path))
	if err := server.Serve(); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return notKnown, err
	}
	return 0, nil
}

// files are the files of a sandbox, for [sftp.NewRequestServer].
type files struct {
	ctx      context.Context // of the session
	box      *sandbox.Sandbox
	accounts *accounts

	mu      sync.Mutex
	writers map[string]*writer // that are open, by path
}

// run runs a program of the sandbox for what the daemon has no operation for.
func (f *files) run(words ...string) error {
	for i, word := range words {
		words[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	result, err := f.box.Commands.Run(f.ctx, strings.Join(words, " "),
		&sandbox.RunOptions{Timeout: toolTime, MaxOutput: toolOutput})
	switch {
	case err != nil:
		return err
	case result.Err() != nil && strings.TrimSpace(result.Stderr) != "":
		return errors.New(strings.TrimSpace(result.Stderr))
	}
	return result.Err()
}

// statusOf gives the errors of the daemon the meaning that SFTP has a status for.
func statusOf(err error) error {
	switch {
	case errors.Is(err, sandbox.ErrNotFound):
		return fmt.Errorf("%w: %w", sftp.ErrSSHFxNoSuchFile, err)
	case errors.Is(err, sandbox.ErrForbidden):
		return fmt.Errorf("%w: %w", sftp.ErrSSHFxPermissionDenied, err)
	case errors.Is(err, io.EOF): // of a connection; clients would take it for that of the file
		return errors.New(err.Error())
	}
	return err
}

// Fileread implements [sftp.FileReader].
func (f *files) Fileread(r *sftp.Request) (io.ReaderAt, error) {
	read := &reader{open: func(offset int64) (io.ReadCloser, error) {
		content, err := f.box.Files.Open(f.ctx, r.Filepath, &sandbox.ReadOptions{Offset: offset})
		return content, statusOf(err)
	}}
	return read, read.begin()
}

// Filewrite implements [sftp.FileWriter].
func (f *files) Filewrite(r *sftp.Request) (io.WriterAt, error) {
	flags := r.Pflags()
	info, err := f.followed(r.Filepath)
	there := err == nil
	switch {
	case there && flags.Excl:
		return nil, fmt.Errorf("%w: %s", os.ErrExist, r.Filepath)
	case there && info.Type != typeFile:
		return nil, errors.New(r.Filepath + ": is not a regular file")
	case !there && (!errors.Is(err, sftp.ErrSSHFxNoSuchFile) || !flags.Creat):
		return nil, err
	case !there:
		// The daemon would make the directories that are missing.
		if directory, err := f.followed(path.Dir(r.Filepath)); err != nil || directory.Type != typeDirectory {
			return nil, fmt.Errorf("%w: %s", sftp.ErrSSHFxNoSuchFile, path.Dir(r.Filepath))
		}
	}
	w, err := newWriter(f, r.Filepath)
	if err != nil {
		return nil, err
	}
	if there {
		w.mode = info.Mode().Perm()
		if !flags.Trunc {
			err = w.load(info.FileInfo.Size)
		}
	} else {
		w.mode = newMode(r.Attrs)
		w.options.Mode = octal(uint32(w.mode))
	}
	if err != nil {
		return nil, errors.Join(err, w.spool.Close())
	}
	f.mu.Lock()
	f.writers[r.Filepath] = w
	f.mu.Unlock()
	return w, nil
}

// newMode returns the mode of a new file. The attributes are those of the request to open it: four
// bytes are the permissions alone, which clients of SSH send. Others cannot be read, as package
// sftp leaves out which ones there are.
func newMode(attributes []byte) os.FileMode {
	if len(attributes) != 4 {
		return 0o666 &^ umask
	}
	return os.FileMode(attributes[2]&1)<<8 | os.FileMode(attributes[3])&^umask
}

// octal is a mode as the daemon wants it.
func octal(mode uint32) string { return strconv.FormatUint(uint64(mode&0o7777), 8) }

// Filecmd implements [sftp.FileCmder].
func (f *files) Filecmd(r *sftp.Request) error {
	switch r.Method {
	case "Setstat":
		return statusOf(f.setAttributes(r))
	case "Rename":
		return statusOf(f.box.Files.Move(f.ctx, sandbox.Move{Src: r.Filepath, Dest: r.Target}))
	case "Remove":
		return statusOf(f.box.Files.Delete(f.ctx, r.Filepath))
	case "Rmdir":
		if err := f.isDirectory(r.Filepath); err != nil {
			return err
		}
		return f.run("rmdir", "--", r.Filepath) // never one that has files, as the daemon's operation
	case "Mkdir":
		if err := f.isFree(r.Filepath); err != nil {
			return err
		}
		return statusOf(f.box.Files.MakeDirectory(f.ctx, r.Filepath, nil))
	case "Link":
		if err := f.isFree(r.Target); err != nil {
			return err
		}
		return f.run("ln", "-T", "--", r.Filepath, r.Target)
	case "Symlink":
		if err := f.isFree(r.Target); err != nil {
			return err
		}
		return statusOf(f.box.Files.Symlink(f.ctx, r.Filepath, r.Target))
	}
	return sftp.ErrSSHFxOpUnsupported
}

// isFree checks that there is nothing at a path, and a directory for it.
func (f *files) isFree(name string) error {
	switch _, err := f.info(name); {
	case err == nil:
		return fmt.Errorf("%w: %s", os.ErrExist, name)
	case !errors.Is(err, sftp.ErrSSHFxNoSuchFile):
		return err
	}
	directory, err := f.followed(path.Dir(name))
	if err == nil && directory.Type != typeDirectory {
		err = errors.New(path.Dir(name) + ": is not a directory")
	}
	return err
}

func (f *files) isDirectory(name string) error {
	info, err := f.info(name)
	if err == nil && info.Type != typeDirectory {
		err = errors.New(name + ": is not a directory")
	}
	return err
}

// PosixRename implements [sftp.PosixRenameFileCmder]: a file at the target is replaced at once.
func (f *files) PosixRename(r *sftp.Request) error {
	err := f.box.Files.Move(f.ctx, sandbox.Move{Src: r.Filepath, Dest: r.Target})
	if errors.Is(err, sandbox.ErrConflict) { // something is there
		return f.run("mv", "-fT", "--", r.Filepath, r.Target)
	}
	return statusOf(err)
}

// setAttributes changes a file; one that is open to be written once it is closed.
func (f *files) setAttributes(r *sftp.Request) error {
	flags, attributes := r.AttrFlags(), r.Attributes()
	permission := sandbox.Permission{}
	if flags.Permissions {
		permission.Mode = octal(attributes.Mode)
	}
	if flags.UidGid {
		permission.Owner, permission.Group = strconv.FormatUint(uint64(attributes.UID), 10), strconv.FormatUint(uint64(attributes.GID), 10)
	}
	f.mu.Lock()
	w := f.writers[r.Filepath]
	f.mu.Unlock()
	if w != nil {
		return w.setAttributes(permission, flags, attributes)
	}
	if permission != (sandbox.Permission{}) {
		if err := f.box.Files.SetPermissions(f.ctx, map[string]sandbox.Permission{r.Filepath: permission}); err != nil {
			return err
		}
	}
	if flags.Size {
		if err := f.run("truncate", "-s", strconv.FormatUint(attributes.Size, 10), "--", r.Filepath); err != nil {
			return err
		}
	}
	if flags.Acmodtime {
		return f.setTime(r.Filepath, attributes.Mtime)
	}
	return nil
}

// setTime sets when a file was changed, in seconds since 1970.
func (f *files) setTime(name string, seconds uint32) error {
	return f.run("touch", "-m", "-d", "@"+strconv.FormatUint(uint64(seconds), 10), "--", name)
}

// Filelist implements [sftp.FileLister].
func (f *files) Filelist(r *sftp.Request) (sftp.ListerAt, error) {
	switch r.Method {
	case "List":
		infos, err := f.box.Files.List(f.ctx, r.Filepath, 1)
		if err != nil {
			return nil, statusOf(err)
		}
		for _, info := range infos {
			switch path.Base(info.Path) {
			case ".", "..", "/":
				return nil, fmt.Errorf("%.200q is not an entry of %s", info.Path, r.Filepath)
			}
		}
		return lister{f, infos}, nil
	case "Stat":
		f.mu.Lock()
		w := f.writers[r.Filepath]
		f.mu.Unlock()
		if w != nil {
			return w.info()
		}
		info, err := f.followed(r.Filepath)
		if err != nil {
			return nil, err
		}
		info.Path = r.Filepath
		return lister{f, []sandbox.FileInfo{info.FileInfo}}, nil
	}
	return nil, sftp.ErrSSHFxOpUnsupported
}

// Lstat implements [sftp.LstatFileLister].
func (f *files) Lstat(r *sftp.Request) (sftp.ListerAt, error) {
	info, err := f.info(r.Filepath)
	if err != nil {
		return nil, err
	}
	return lister{f, []sandbox.FileInfo{info.FileInfo}}, nil
}

// Readlink implements [sftp.ReadlinkFileLister].
func (f *files) Readlink(name string) (string, error) {
	info, err := f.info(name)
	if err != nil {
		return "", err
	}
	target, ok := info.target()
	if !ok {
		return "", errors.New(name + ": is not a symbolic link")
	}
	return target, nil
}

// LookupUserName implements [sftp.NameLookupFileLister].
func (f *files) LookupUserName(uid string) string { return f.accounts.userName(uid) }

// LookupGroupName implements [sftp.NameLookupFileLister].
func (f *files) LookupGroupName(gid string) string { return f.accounts.groupName(gid) }

// info returns the facts of a path; a symbolic link is not followed.
func (f *files) info(name string) (fileInfo, error) {
	infos, err := f.box.Files.Info(f.ctx, name)
	if err != nil {
		return fileInfo{}, statusOf(err)
	}
	info, ok := infos[name]
	if !ok {
		return fileInfo{}, fmt.Errorf("%w: %s", sftp.ErrSSHFxNoSuchFile, name)
	}
	return fileInfo{info, f.accounts}, nil
}

// followed returns the facts of a path behind its symbolic links.
func (f *files) followed(name string) (fileInfo, error) {
	info, err := f.info(name)
	if err != nil || info.Type != typeSymlink {
		return info, err
	}
	// ".." in the target of a link means the parent of the directory that is really there, and the
	// daemon takes it for the one of the text: each name is looked at.
	reached, rest, links := "/", strings.Split(name, "/"), 0
	for range maxSteps {
		if len(rest) == 0 {
			return f.info(reached)
		}
		next := rest[0]
		rest = rest[1:]
		switch next {
		case "", ".":
			continue
		case "..":
			reached = path.Dir(reached)
			continue
		}
		info, err := f.info(path.Join(reached, next))
		if err != nil {
			return fileInfo{}, err
		}
		target, ok := info.target()
		if !ok {
			reached = path.Join(reached, next)
			continue
		}
		if links++; links > maxLinks {
			break
		}
		if path.IsAbs(target) {
			reached = "/"
		}
		rest = append(strings.SplitN(target, "/", maxSteps), rest...)
	}
	return fileInfo{}, errors.New(name + ": too many symbolic links")
}

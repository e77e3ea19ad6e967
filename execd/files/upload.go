package files

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// blockSize is how much an upload gathers before it writes, in bytes. Form parsers deliver 4 KiB at
// a time; a system call for each would halve the speed.
const blockSize = 256 << 10

// flushSize is after how many bytes the kernel is asked to start writing to disk, so that Commit's
// fsync finds little left to do. A multiple of blockSize.
const flushSize = 8 << 20

// UploadMeta says where an upload goes.
type UploadMeta struct {
	Path string
	// Permission is the owner, group and mode to set. Fields that are not given are kept from the
	// file that is replaced, as its ACL is; a new file gets the daemon's user and 0644.
	Permission Permission
	// Parents own the directories that are made above the file; nil is the daemon's user.
	Parents *Owner
	// Symlink has the content be the target of a symbolic link, for [Files.Symlink].
	Symlink bool
	// Digest is the expected content as the value of a Repr-Digest header (sha-256=:BASE64:); empty
	// means no check.
	Digest string
}

// Uploaded is a finished upload.
type Uploaded struct {
	Path   string // absolute, as asked for
	Size   int64  // bytes
	Digest string // as the value of a Repr-Digest header: sha-256=:BASE64:
}

// Upload is a file on its way. It is an io.Writer for one goroutine, to be ended by Commit or
// Abort. Writing to disk and hashing happen beside the caller, which meanwhile reads the next bytes
// from the network.
type Upload struct {
	path   string
	asked  attributes
	want   []byte // the expected sum, or nil
	staged *staged
	files  *Files

	block  *[]byte      // being filled by Write
	full   chan *[]byte // to the writing goroutine
	free   chan *[]byte // back from it
	failed chan struct{}
	done   chan struct{}
	ended  bool

	// Owned by the writing goroutine until failed or done is closed.
	hash hash.Hash
	size int64
	err  error
}

// Begin starts an upload: it makes a temporary file beside the target, or where the first of its
// missing parents will be. Neither the target nor its parents are touched before Commit. A symbolic
// link at the path is followed, also to a file that does not exist yet. A target that is no regular
// file, an unknown owner or group and a bad mode or digest are KindInvalid; a parent that is no
// directory is KindConflict.
func (f *Files) Begin(meta UploadMeta) (*Upload, error) {
	path, err := f.resolve(meta.Path)
	if err != nil {
		return nil, err
	}
	if strings.HasSuffix(meta.Path, "/") {
		return nil, invalid(path, "must name a file, not a directory")
	}
	asked, err := meta.Permission.attributes(path)
	if err != nil {
		return nil, err
	}
	var want []byte
	if meta.Digest != "" {
		if want, err = parseDigest(meta.Digest); err != nil {
			return nil, err
		}
	}
	target, err := followLinks(path)
	if err != nil {
		return nil, err
	}
	if _, err := keepAttributes(asked, target); err != nil { // Commit would be too late for a directory
		return nil, err
	}
	directory, err := checkDirectory(filepath.Dir(target))
	if err != nil {
		return nil, err
	}
	staged, err := f.stage(target, directory, "upload")
	if err != nil {
		return nil, err
	}
	staged.parents = meta.Parents
	u := &Upload{
		path: path, asked: asked, want: want, staged: staged, files: f,
		full: make(chan *[]byte, 2), free: make(chan *[]byte, 2),
		failed: make(chan struct{}), done: make(chan struct{}),
		hash: sha256.New(),
	}
	for range cap(u.free) {
		u.free <- f.blocks.Get().(*[]byte)
	}
	go u.drain()
	return u, nil
}

// followLinks returns what path means when it is a symbolic link, which may point to nothing.
func followLinks(path string) (string, error) {
	start := path
	for range 40 {
		link, err := os.Readlink(path)
		switch {
		case errors.Is(err, unix.EINVAL), errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
			return path, nil // no link
		case err != nil:
			return "", classify(start, err)
		}
		if !filepath.IsAbs(link) {
			directory, err := followAll(filepath.Dir(path))
			if err != nil {
				return "", classify(start, err)
			}
			link = directory + "/" + link
		}
		if path, err = followUp(link); err != nil {
			return "", classify(start, err)
		}
	}
	return "", classify(start, unix.ELOOP)
}

// followUp returns a path without "..", which means the parent of what comes before it. If that is
// a link, its text does not say which directory that is.
func followUp(path string) (string, error) {
	names := strings.Split(path, "/")
	for i := len(names) - 1; i >= 0; i-- {
		if names[i] == ".." {
			directory, err := followAll(strings.Join(names[:i+1], "/"))
			return filepath.Join(append([]string{directory}, names[i+1:]...)...), err
		}
	}
	return filepath.Clean(path), nil
}

// keepAttributes returns what was asked for, and for the rest what the file at target has now, or
// the defaults of a new one.
func keepAttributes(attrs attributes, target string) (attributes, error) {
	var st unix.Stat_t
	err := unix.Stat(target, &st)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		st.Mode, st.Uid, st.Gid = 0o644|unix.S_IFREG, uint32(os.Geteuid()), uint32(os.Getegid())
	case err != nil:
		return attrs, classify(target, err)
	}
	switch typeOf(st.Mode) {
	case TypeFile:
	case TypeDirectory:
		return attrs, invalid(target, "is a directory; an upload needs the path of a file")
	default:
		return attrs, invalid(target, "is not a regular file")
	}
	if attrs.uid == -1 {
		attrs.uid = int(st.Uid)
	}
	if attrs.gid == -1 {
		attrs.gid = int(st.Gid)
	}
	if !attrs.setMode {
		attrs.mode, attrs.setMode = st.Mode&0o7777, true
	}
	return attrs, nil
}

// Write takes content. An error (KindNoSpace, say) may belong to earlier bytes; the upload is then
// to be aborted.
func (u *Upload) Write(p []byte) (int, error) {
	if u.ended {
		return 0, fs.ErrClosed
	}
	written := 0
	for len(p) > 0 {
		if u.block == nil {
			select {
			case <-u.failed:
				return written, u.err
			case u.block = <-u.free:
			}
		}
		block := *u.block
		n := copy(block[len(block):cap(block)], p)
		*u.block = block[:len(block)+n]
		p, written = p[n:], written+n
		if len(*u.block) == cap(*u.block) {
			u.full <- u.block
			u.block = nil
		}
	}
	return written, nil
}

// drain writes and hashes blocks until there are no more. After a failure it only hands them back.
func (u *Upload) drain() {
	defer close(u.done)
	for block := range u.full {
		if u.err == nil {
			u.hash.Write(*block)
			n, err := u.staged.file.Write(*block)
			u.size += int64(n)
			if u.size%flushSize == 0 {
				// Only a hint, so what it returns does not matter: Commit's fsync reports errors.
				_ = unix.SyncFileRange(int(u.staged.file.Fd()), u.size-flushSize, flushSize, unix.SYNC_FILE_RANGE_WRITE)
			}
			if err != nil {
				u.err = classify(u.path, err)
				close(u.failed)
			}
		}
		*block = (*block)[:0]
		u.free <- block
	}
}

// finish waits until everything is written. The second call and later ones do nothing.
func (u *Upload) finish() {
	if u.ended {
		return
	}
	u.ended = true
	if u.block != nil {
		u.full <- u.block
		u.block = nil
	}
	close(u.full)
	<-u.done
	for range cap(u.free) {
		u.files.blocks.Put(<-u.free)
	}
}

// Commit makes the content appear at its path, durably, and returns its size and digest. If
// anything fails, a digest that differs (KindInvalid) included, no trace of the upload remains; but
// what is written in place may be half written.
func (u *Upload) Commit() (Uploaded, error) {
	if u.ended {
		return Uploaded{}, fmt.Errorf("%s: upload has ended already", u.path)
	}
	u.finish()
	defer u.staged.discard()
	if u.err != nil {
		return Uploaded{}, u.err
	}
	sum := u.hash.Sum(nil)
	if u.want != nil && !bytes.Equal(u.want, sum) {
		return Uploaded{}, invalid(u.path, "digest: expected %s, got %s", formatDigest(u.want), formatDigest(sum))
	}
	if err := u.staged.commit(u.asked); err != nil {
		return Uploaded{}, err
	}
	return Uploaded{Path: u.path, Size: u.size, Digest: formatDigest(sum)}, nil
}

// Abort ends the upload and leaves the target as it was. After Commit it does nothing, so it can be
// deferred.
func (u *Upload) Abort() {
	u.finish()
	u.staged.discard()
}

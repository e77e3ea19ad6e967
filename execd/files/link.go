package files

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// MaxLinkTarget is how long the target of a symbolic link can be, in bytes.
const MaxLinkTarget = unix.PathMax - 1

// Symlink makes a symbolic link with that target, which need not exist. It replaces a file or link
// at the path, at once, and follows no link there; a directory is KindConflict. Missing parents are
// made. A target that no link can have, a mode, and a digest that differs are KindInvalid.
func (f *Files) Symlink(meta UploadMeta, target []byte) (Uploaded, error) {
	path, err := f.resolve(meta.Path)
	if err != nil {
		return Uploaded{}, err
	}
	switch {
	case strings.HasSuffix(meta.Path, "/"):
		return Uploaded{}, invalid(path, "must name a link, not a directory")
	case meta.Permission.Mode != nil:
		return Uploaded{}, invalid(path, "mode: a symbolic link has none")
	case len(target) == 0 || len(target) > MaxLinkTarget:
		return Uploaded{}, invalid(path, "the target of a link must have 1 to %d bytes", MaxLinkTarget)
	case bytes.IndexByte(target, 0) >= 0:
		return Uploaded{}, invalid(path, "the target of a link must not have a NUL byte")
	}
	asked, err := meta.Permission.attributes(path)
	if err != nil {
		return Uploaded{}, err
	}
	sum := sha256.Sum256(target)
	if meta.Digest != "" {
		want, err := parseDigest(meta.Digest)
		if err != nil {
			return Uploaded{}, err
		}
		if !bytes.Equal(want, sum[:]) {
			return Uploaded{}, invalid(path, "digest: expected %s, got %s", formatDigest(want), formatDigest(sum[:]))
		}
	}
	if err := f.placeLink(path, string(target), asked); err != nil {
		return Uploaded{}, err
	}
	return Uploaded{Path: path, Size: int64(len(target)), Digest: formatDigest(sum[:])}, nil
}

// placeLink makes a link beside the path, and renames it to the path.
func (f *Files) placeLink(path, target string, asked attributes) error {
	directory := filepath.Dir(path)
	made, err := makeDirectory(directory, nil)
	if err != nil {
		return err
	}
	beside := filepath.Join(directory, TempPrefix+"link-"+rand.Text())
	if err := os.Symlink(target, beside); err != nil {
		removeMade(made)
		return classify(path, err)
	}
	err = os.Lchown(beside, asked.uid, asked.gid)
	var unlock func()
	if err == nil {
		unlock, err = f.places.lock(path)
	}
	if err == nil {
		err = os.Rename(beside, path)
		unlock()
	}
	if err != nil {
		os.Remove(beside) // the first error counts
		removeMade(made)
		if isDirectoryItself(path) {
			return conflict(path, "is a directory, which a link does not replace")
		}
		return classify(path, err)
	}
	return classify(path, syncDirectory(directory))
}

// isDirectoryItself reports whether a directory is at the path, and not a link to one.
func isDirectoryItself(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir()
}

// linkAt returns the target of the symbolic link that name means in the directory dirfd; "" when it
// is none any more.
func linkAt(dirfd int, name string) string {
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dirfd, name, target)
	if err != nil {
		return ""
	}
	return string(target[:n])
}

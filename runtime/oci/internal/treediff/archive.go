package treediff

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
)

const (
	// maxBytes bounds what the files of an archive have together, and maxLinked how many of them
	// have several names: these are kept in memory.
	maxBytes, maxLinked = 64 << 30, 500_000
	// whiteoutPrefix is what the name of a removed file begins with in a layer of an image.
	whiteoutPrefix = ".wh."
	// paxAttribute is what the record of an extended attribute begins with.
	paxAttribute = "SCHILY.xattr."
)

// WriteLayer writes the files that the second state has and the first one has not, or not as the
// same file of a layer, as a layer of an image in a tar archive. A removed file is a whiteout. An
// entry's directories come before it, and sockets are left out. The bytes depend on the files
// alone.
//
// WriteLayer returns [engine.ErrImage] for a file whose name would be a whiteout, and
// [engine.ErrSnapshotTooLarge].
func WriteLayer(ctx context.Context, states States, to io.Writer) error {
	a := &archive{tar: tar.NewWriter(to), linked: map[inode]string{}}
	if err := walkStates(ctx, states, a.visit); err != nil {
		return err
	}
	return a.tar.Close()
}

type inode struct{ device, number uint64 }

// archive is a layer that is being written.
type archive struct {
	tar     *tar.Writer
	pending []change         // directories that are written with the first file in them
	linked  map[inode]string // files with several names, by the first one
	bytes   int64
}

func (a *archive) visit(w *walk, c change) error {
	for len(a.pending) > 0 && !isIn(c.name, a.pending[len(a.pending)-1].name) {
		a.pending = a.pending[:len(a.pending)-1]
	}
	if c.to != nil && c.to.isDirectory() && c.from != nil && c.from.info.Mtim == c.to.info.Mtim {
		equal, err := w.equal(c)
		if err != nil {
			return err
		}
		if equal {
			c.directory = nil // it would be opened again for each directory in it
			a.pending = append(a.pending, c)
			return nil
		}
	}
	for _, directory := range a.pending {
		if err := a.file(w, directory); err != nil {
			return err
		}
	}
	a.pending = a.pending[:0]
	if strings.HasPrefix(path.Base(c.name), whiteoutPrefix) && c.to != nil {
		return fmt.Errorf("%w: files: %s: a name that begins with %s means a removed file in an image", engine.ErrImage, shown(c.name), whiteoutPrefix)
	}
	if c.to == nil {
		return a.whiteout(c)
	}
	return a.file(w, c)
}

// isIn reports whether a name is in a directory, at whatever depth.
func isIn(name, directory string) bool {
	return directory == "" || strings.HasPrefix(name, directory+"/")
}

func (a *archive) whiteout(c change) error {
	directory, base := path.Split(c.name)
	return a.header(c.name, &tar.Header{Typeflag: tar.TypeReg, Name: directory + whiteoutPrefix + base, Mode: 0o600, ModTime: time.Unix(0, 0)})
}

func (a *archive) header(name string, header *tar.Header) error {
	header.Format = tar.FormatPAX
	if err := a.tar.WriteHeader(header); err != nil {
		return fmt.Errorf("write %s to the archive: %w", shown(name), err)
	}
	return nil
}

// file writes the entry of a file.
func (a *archive) file(w *walk, c change) error {
	info := &c.to.info
	header := &tar.Header{
		Name: c.name, Mode: int64(info.Mode & 0o7777), Uid: int(info.Uid), Gid: int(info.Gid),
		ModTime: time.Unix(info.Mtim.Unix()).UTC(),
	}
	switch c.to.kind() {
	case unix.S_IFDIR:
		header.Typeflag, header.Name = tar.TypeDir, "./"
		if c.name != "" {
			header.Name = c.name + "/"
		}
	case unix.S_IFREG:
		header.Typeflag, header.Size = tar.TypeReg, info.Size
	case unix.S_IFLNK:
		target, err := w.target(c, c.to)
		if err != nil {
			return err
		}
		header.Typeflag, header.Linkname = tar.TypeSymlink, target
	case unix.S_IFIFO:
		header.Typeflag = tar.TypeFifo
	case unix.S_IFCHR, unix.S_IFBLK:
		header.Typeflag = tar.TypeChar
		if c.to.kind() == unix.S_IFBLK {
			header.Typeflag = tar.TypeBlock
		}
		header.Devmajor, header.Devminor = int64(unix.Major(info.Rdev)), int64(unix.Minor(info.Rdev))
	default:
		return nil
	}
	if done, err := a.link(c, header); done || err != nil {
		return err
	}
	if err := addAttributes(w, c, header); err != nil {
		return err
	}
	if err := a.header(c.name, header); err != nil || header.Typeflag != tar.TypeReg {
		return err
	}
	return a.content(w, c)
}

// link writes the entry of a file that another entry has by another name.
func (a *archive) link(c change, header *tar.Header) (done bool, err error) {
	info := &c.to.info
	if info.Nlink < 2 || c.to.isDirectory() {
		return false, nil
	}
	key := inode{info.Dev, info.Ino}
	if first, ok := a.linked[key]; ok {
		header.Typeflag, header.Linkname, header.Size = tar.TypeLink, first, 0
		return true, a.header(c.name, header)
	}
	if len(a.linked) >= maxLinked {
		return false, fmt.Errorf("%w: more than %d files have several names", engine.ErrSnapshotTooLarge, maxLinked)
	}
	a.linked[key] = c.name
	return false, nil
}

func addAttributes(w *walk, c change, header *tar.Header) error {
	attributes, err := w.attributes(c, c.to)
	if err != nil || len(attributes) == 0 {
		return err
	}
	header.PAXRecords = map[string]string{}
	for name, value := range attributes {
		if !strings.Contains(name, "=") { // an archive cannot have it
			header.PAXRecords[paxAttribute+name] = value
		}
	}
	return nil
}

func (a *archive) content(w *walk, c change) error {
	if a.bytes += c.to.info.Size; a.bytes > maxBytes || a.bytes < 0 {
		return fmt.Errorf("%w: the files that differ have more than %d bytes", engine.ErrSnapshotTooLarge, int64(maxBytes))
	}
	from, err := w.openContent(c, c.to)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	for {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		_, err := io.CopyN(a.tar, from, pieceBytes)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("write %s to the archive: %w", shown(c.name), err)
		}
	}
}

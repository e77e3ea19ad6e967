// Package unpack writes layers of images into directories, in the form that overlayfs mounts as
// lower layers.
//
// A layer is a tar archive from an untrusted source. It is refused, with [ErrRefused], when one of
// its entries breaks a rule:
//
//   - Names lead nowhere above the layer's root; "/" before them and ".." within them are resolved as text, as Docker does. They are at most
//     4095 bytes long and 512 directories deep, with at most 255 bytes between two slashes; .wh. of a whiteout does not count there.
//   - A name may lead through symbolic links of the same layer. They are resolved as if the layer's directory were the root directory, so that no
//     link leads out of it, and a directory that is missing there is made: it may be one of a layer below. Where a symbolic link itself points is
//     not restricted: it is never followed outside of the container.
//   - A hard link names a file that came before it in the same layer.
//   - A whiteout (.wh.NAME) has a name.
//   - Owners are numbers that Linux can store.
//   - The layers of an image stay within [Limits].
//
// Owners, modes (setuid included), times, and the extended attributes security.capability and
// user.* are kept, but for those of user.* that the file system does not store; other attributes
// are left out, those of overlayfs first of all. Whiteouts become character devices 0/0 and opaque
// directories get trusted.overlay.opaque=y. Devices are left out: base images have some in /dev,
// where runtimes mount their own. The kernel resolves every name within the layer's directory
// (openat2 with RESOLVE_IN_ROOT).
package unpack

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// ErrRefused is wrapped by the errors about what a layer holds, in contrast to those about reading
// and writing it.
var ErrRefused = errors.New("layer refused")

// Result describes an unpacked layer.
type Result struct {
	Bytes  int64 // about what it takes on the disk
	Opaque bool  // it hides all layers below it
	// Implied are the directories that the layer has no entry for, but something in them: relative
	// names without symbolic links, sorted. They have owner 0 and mode 0755, and should have what
	// the layers below say. Of very many, some are left out.
	Implied []string
}

// Layer unpacks the tar archive into the directory, which must exist and be empty, and reads the
// archive to its end. After an error the directory holds a part of the layer. It needs root, with
// CAP_MKNOD and CAP_SYS_ADMIN. ctx ends it between two writes.
//
// Long runs of zeros become holes of files, which take nothing of the disk. reserve, if not nil, is
// called before n more bytes are taken of it, in the sum [Result].Bytes and what is free again when
// Layer returns. An error of it ends the unpacking.
func Layer(ctx context.Context, directory string, archive io.Reader, limits *Limits, reserve func(n int64) error) (Result, error) {
	root, err := unix.Open(directory, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return Result{}, fmt.Errorf("open directory %s: %w", directory, err)
	}
	defer func() { _ = unix.Close(root) }()
	if err := unix.Fchmod(root, 0o755); err != nil {
		return Result{}, fmt.Errorf("change mode of %s: %w", directory, err)
	}
	l := &layer{ctx: ctx, root: root, limits: limits, reserve: reserve, buffer: make([]byte, 256<<10), open: -1}
	defer l.forget()
	defer l.times.close()
	stream := &meteredReader{ctx: ctx, source: archive, limits: limits}
	entries := tar.NewReader(stream)
	for {
		header, err := entries.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return Result{}, stream.explain(err)
		}
		if err := l.entry(header, entries); err != nil {
			if stream.failed != nil {
				err = stream.failed
			}
			return Result{}, fmt.Errorf("entry %s: %w", quote(header.Name), err)
		}
	}
	// What follows the archive's end belongs to its digest.
	if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, stream, l.buffer); err != nil {
		return Result{}, err
	}
	if err := l.setDirectoryTimes(); err != nil {
		return Result{}, err
	}
	if err := l.listImplied(); err != nil {
		return Result{}, err
	}
	return l.result, nil
}

// layer is a layer that is being unpacked.
type layer struct {
	ctx     context.Context
	root    int // descriptor of the layer's directory
	limits  *Limits
	reserve func(n int64) error
	result  Result
	buffer  []byte

	// The directory that was used last: entries of one directory follow one another. -1 is none.
	open     int
	openName string

	// Times of directories are set last: what is made in them changes them.
	times directoryTimes

	implied      map[uint64]string // directories without an entry, by inode
	impliedBytes int               // what they count for
	leftOut      map[string]bool   // clean names of devices
}

// entry unpacks one entry.
func (l *layer) entry(header *tar.Header, content io.Reader) error {
	if err := l.ctx.Err(); err != nil {
		return err
	}
	if header.Typeflag == tar.TypeXGlobalHeader {
		return nil // comments, for instance of git archive
	}
	name, err := cleanName(header.Name)
	if err != nil {
		return err
	}
	mark, err := markOf(name)
	switch {
	case err != nil:
		return err
	case mark.ignored:
		return nil
	case mark.opaque:
		return l.makeOpaque(mark.directory)
	case mark.whiteout != "":
		return l.whiteout(mark.directory, mark.whiteout)
	}
	if err := checkOwner(header); err != nil {
		return err
	}
	directory, base := split(name)
	if base == "" && header.Typeflag != tar.TypeDir {
		return nil // the root is a directory, whatever the archive has for it
	}
	switch header.Typeflag {
	case tar.TypeDir:
		return l.directory(name, header)
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		return l.file(directory, base, header, content)
	case tar.TypeSymlink:
		return l.symlink(directory, base, header)
	case tar.TypeLink:
		return l.link(directory, base, header.Linkname)
	case tar.TypeFifo:
		return l.fifo(directory, base, header)
	case tar.TypeChar, tar.TypeBlock:
		return l.leaveOut(name)
	}
	return refusedf("type %q of entries is unknown", header.Typeflag)
}

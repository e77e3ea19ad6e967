package files

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// maxPseudoFile bounds what Open reads into memory for a file whose size is unknown, in bytes.
const maxPseudoFile = 16 << 20

// Download is the content of a regular file.
type Download struct {
	// Content is the *os.File itself, so that a server can use sendfile, or bytes in memory where
	// the kernel makes them up while they are read.
	Content io.ReadSeeker
	// Info describes the file; Path is as asked for, the rest is that of the file which a symbolic
	// link leads to.
	Info Info
	// Tag differs from that of every other content, for an entity tag.
	Tag  string
	file *os.File
}

// Close releases the file.
func (d *Download) Close() error {
	if d.file == nil {
		return nil
	}
	return d.file.Close()
}

// Open opens a regular file for download, following symbolic links. A directory, FIFO, socket or
// device is KindInvalid, and never blocks.
//
// Files of /proc, /sys and the like have no true size. They are read at once into memory, at most
// 16 MiB; one that is longer, or that has no end, is KindInvalid.
func (f *Files) Open(path string) (*Download, error) {
	abs, err := f.resolve(path)
	if err != nil {
		return nil, err
	}
	// Opening alone acts on some devices (a tape, a watchdog), so look first; and look again at
	// what was opened.
	if info, err := infoAt(unix.AT_FDCWD, abs, abs, 0, newNames()); err != nil {
		return nil, err
	} else if err := checkRegular(info); err != nil {
		return nil, err
	}
	fd, err := unix.Open(abs, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, classify(abs, err)
	}
	download, err := newDownload(fd, abs)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return download, nil
}

// newDownload takes over fd when it succeeds.
func newDownload(fd int, path string) (*Download, error) {
	st, err := statAt(fd, "", path, unix.AT_EMPTY_PATH)
	if err != nil {
		return nil, err
	}
	info := infoOf(st, path, newNames())
	if err := checkRegular(info); err != nil {
		return nil, err
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return nil, classify(path, err)
	}
	// Most of /proc says 0, some of it more than there is; sysfs says a page for whatever it holds.
	if info.Size != 0 && fs.Type != unix.SYSFS_MAGIC && fs.Type != unix.PROC_SUPER_MAGIC {
		file := os.NewFile(uintptr(fd), path)
		return &Download{Content: file, Info: info, Tag: tagOf(st), file: file}, nil
	}
	content, err := readPseudo(fd, path)
	if err != nil {
		return nil, err
	}
	unix.Close(fd)
	info.Size = int64(len(content))
	// What the kernel makes up can change without any time of the file.
	tag := fmt.Sprintf("%x", sha256.Sum256(content))
	return &Download{Content: bytes.NewReader(content), Info: info, Tag: tag}, nil
}

// tagOf names the state of a file. Size and modification time alone can be those of another file:
// programs set the time (touch -d, cp -p, reproducible builds). The time of the last change cannot
// be set, and a file that takes the place of another has its own inode.
func tagOf(st unix.Statx_t) string {
	return fmt.Sprintf("%x-%x-%x-%x", st.Ino, timeOf(st.Ctime).UnixNano(), timeOf(st.Mtime).UnixNano(), st.Size)
}

func checkRegular(info Info) error {
	switch info.Type {
	case TypeFile:
		return nil
	case TypeDirectory:
		return invalid(info.Path, "is a directory; only regular files can be downloaded")
	default:
		return invalid(info.Path, "is not a regular file; only regular files can be downloaded")
	}
}

// readPseudo reads a file without a true size. The descriptor does not block, so one that waits for
// more instead of ending (/proc/kmsg) is recognized by EAGAIN.
func readPseudo(fd int, path string) ([]byte, error) {
	var content bytes.Buffer
	chunk := make([]byte, 64<<10)
	for {
		n, err := unix.Read(fd, chunk)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return nil, invalid(path, "has no end; read it with a command")
		case err == unix.EIO, err == unix.EINVAL, err == unix.ENXIO, err == unix.ENODEV, err == unix.EOPNOTSUPP, err == unix.ESRCH:
			// What the kernel makes up answers so to a reader that it has nothing for: the memory
			// of a process at 0, say, or a control that is only written to. No disk has failed.
			return nil, &Error{Kind: KindInvalid, Path: path, Msg: "cannot be read from its start: " + err.Error(), Err: err}
		case err != nil:
			return nil, classify(path, err)
		case n == 0:
			return content.Bytes(), nil
		}
		content.Write(chunk[:n])
		if content.Len() > maxPseudoFile {
			return nil, invalid(path, "reports no size and is longer than %d bytes; read it with a command", maxPseudoFile)
		}
	}
}

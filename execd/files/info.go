package files

import (
	"time"

	"golang.org/x/sys/unix"
)

// Type is what kind of thing is at a path.
type Type string

// The types that Info reports.
const (
	TypeFile      Type = "file"
	TypeDirectory Type = "directory"
	TypeSymlink   Type = "symlink"
	TypeOther     Type = "other" // a socket, FIFO or device
)

// Info describes what is at a path.
//
// A symbolic link is described itself, not what it points to: that is what a removal or a move
// would act on, and it lets a broken link be seen.
type Info struct {
	Path     string // absolute and clean
	Type     Type
	Size     int64     // bytes
	Modified time.Time // in the years 1 to 9999, as Created is
	// Created is the time of birth. On a file system that keeps none it is the earlier of the last
	// change of the content and of the attributes, the best that is known.
	Created time.Time
	Owner   string // a name, or the number of a user without one
	Group   string // likewise
	Target  string // of a symbolic link, as the link has it; empty for anything else
	Mode    int    // the octal digits as a decimal number: 0644 is 644, with the set-user-ID bit 4644
}

// Info describes each path; the keys are the paths as given. A missing one is KindNotFound.
func (f *Files) Info(paths []string) (map[string]Info, error) {
	out := make(map[string]Info, len(paths))
	names := newNames()
	for _, path := range paths {
		abs, err := f.resolve(path)
		if err != nil {
			return nil, err
		}
		if out[path], err = infoAt(unix.AT_FDCWD, abs, abs, unix.AT_SYMLINK_NOFOLLOW, names); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// infoAt describes what name means in the directory dirfd; path is what the description is to say.
func infoAt(dirfd int, name, path string, flags int, names *names) (Info, error) {
	st, err := statAt(dirfd, name, path, flags)
	if err != nil {
		return Info{}, err
	}
	info := infoOf(st, path, names)
	if info.Type == TypeSymlink {
		info.Target = linkAt(dirfd, name)
	}
	return info, nil
}

// statAt asks the kernel for all that an Info needs; path is what an error is to say.
func statAt(dirfd int, name, path string, flags int) (st unix.Statx_t, err error) {
	const mask = unix.STATX_BASIC_STATS | unix.STATX_BTIME
	err = unix.Statx(dirfd, name, flags, mask, &st)
	return st, classify(path, err)
}

func infoOf(st unix.Statx_t, path string, names *names) Info {
	info := Info{
		Path:     path,
		Type:     typeOf(uint32(st.Mode)),
		Size:     int64(st.Size),
		Modified: timeOf(st.Mtime),
		Created:  timeOf(st.Btime),
		Owner:    names.user(st.Uid),
		Group:    names.group(st.Gid),
		Mode:     decimalMode(uint32(st.Mode)),
	}
	if st.Mask&unix.STATX_BTIME == 0 {
		info.Created = info.Modified
		if changed := timeOf(st.Ctime); changed.Before(info.Created) {
			info.Created = changed
		}
	}
	return info
}

func typeOf(mode uint32) Type {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return TypeFile
	case unix.S_IFDIR:
		return TypeDirectory
	case unix.S_IFLNK:
		return TypeSymlink
	default:
		return TypeOther
	}
}

// The times that an answer can hold: RFC 3339 has four digits for the year, and clients have no
// year 0.
var (
	earliest = time.Date(1, time.January, 1, 0, 0, 0, 0, time.UTC)
	latest   = time.Date(9999, time.December, 31, 23, 59, 59, 999_999_999, time.UTC)
)

// timeOf returns a time of a file, or the nearest that an answer can hold: a file may be given any.
func timeOf(ts unix.StatxTimestamp) time.Time {
	switch {
	case ts.Sec < earliest.Unix():
		return earliest
	case ts.Sec > latest.Unix():
		return latest
	}
	return time.Unix(ts.Sec, int64(ts.Nsec)).UTC()
}

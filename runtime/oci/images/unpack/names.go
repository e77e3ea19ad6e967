package unpack

import (
	"archive/tar"
	"fmt"
	"math"
	"path"
	"strings"
)

// What Linux and overlayfs can name.
const (
	maxName      = 4095 // bytes of a path
	maxComponent = 255  // bytes between two slashes, without the prefix of a whiteout
	maxDepth     = 512  // folders above an entry
)

// How layers say that something of the layers below is gone.
const (
	whiteoutPrefix = ".wh."
	// metaPrefix is of names that AUFS kept for itself; only opaqueName has a meaning in images.
	metaPrefix = ".wh..wh."
	opaqueName = ".wh..wh..opq"
)

// mark is what a name means beside its file.
type mark struct {
	folder   string
	whiteout string // the name in folder that is gone
	opaque   bool   // nothing of the layers below is in folder
	ignored  bool
}

func refusedf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrRefused, fmt.Sprintf(format, args...))
}

// quote keeps a name in a message short and on one line.
func quote(name string) string {
	const limit = 200
	if len(name) > limit {
		return fmt.Sprintf("%q...", name[:limit])
	}
	return fmt.Sprintf("%q", name)
}

// cleanName returns the name relative to the layer's root; the root itself is ".".
func cleanName(name string) (string, error) {
	switch {
	case name == "":
		return "", refusedf("the name is empty")
	case strings.ContainsRune(name, 0):
		return "", refusedf("the name contains a zero byte")
	case strings.HasPrefix(name, "/") && strings.Trim(name, "/") != "":
		return "", refusedf("the name is absolute")
	case len(name) > maxName:
		return "", refusedf("the name is longer than %d bytes", maxName)
	}
	depth := 0
	for component := range strings.SplitSeq(name, "/") {
		switch {
		case component == "..":
			return "", refusedf(`the name contains ".."`)
		case len(strings.TrimPrefix(component, whiteoutPrefix)) > maxComponent: // a whiteout is no file: what counts is the name that is gone
			return "", refusedf("the name has a part that is longer than %d bytes", maxComponent)
		case component != "" && component != ".":
			depth++
		}
	}
	if depth > maxDepth+1 {
		return "", refusedf("the name is more than %d folders deep", maxDepth)
	}
	return path.Clean(strings.TrimLeft(name, "/")), nil
}

// split returns the folder of a clean name and the name in it, which is empty for the root.
func split(name string) (folder, base string) {
	if name == "." {
		return ".", ""
	}
	folder, base = path.Split(name)
	return path.Clean(folder), base
}

// markOf recognizes whiteouts and what belongs to them.
func markOf(name string) (mark, error) {
	if !strings.Contains(name, whiteoutPrefix) {
		return mark{}, nil
	}
	folder, base := split(name)
	for component := range strings.SplitSeq(folder, "/") {
		if strings.HasPrefix(component, metaPrefix) {
			return mark{ignored: true}, nil
		}
		if strings.HasPrefix(component, whiteoutPrefix) {
			return mark{}, refusedf("a whiteout has no files")
		}
	}
	switch {
	case base == opaqueName:
		return mark{folder: folder, opaque: true}, nil
	case strings.HasPrefix(base, metaPrefix):
		return mark{ignored: true}, nil
	case !strings.HasPrefix(base, whiteoutPrefix):
		return mark{}, nil
	}
	gone := strings.TrimPrefix(base, whiteoutPrefix)
	if gone == "" || gone == "." || gone == ".." {
		return mark{}, refusedf("the whiteout names nothing")
	}
	return mark{folder: folder, whiteout: gone}, nil
}

// checkOwner refuses owners that Linux does not have: -1 stands for no change there.
func checkOwner(header *tar.Header) error {
	for _, id := range []int{header.Uid, header.Gid} {
		if id < 0 || int64(id) >= math.MaxUint32 {
			return refusedf("owner %d:%d is not within 0 and %d", header.Uid, header.Gid, uint32(math.MaxUint32-1))
		}
	}
	return nil
}

func isDeviceFolder(folder string) bool {
	return folder == "dev" || strings.HasPrefix(folder, "dev/")
}

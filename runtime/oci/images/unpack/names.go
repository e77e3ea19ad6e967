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
	maxDepth     = 512  // directories above an entry
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
	directory string
	whiteout  string // the name in directory that is gone
	opaque    bool   // nothing of the layers below is in directory
	ignored   bool
}

var errTooDeep = refusedf("the name is more than %d directories deep", maxDepth)

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

// cleanName returns the name relative to the layer's root; the root itself is ".". As Docker does,
// it takes an absolute name for one below the root, and resolves "." and ".." as text, before any
// symbolic link. A name that leads above the root is refused, unless it is absolute: the root is
// its own parent.
func cleanName(name string) (string, error) {
	switch {
	case strings.ContainsRune(name, 0):
		return "", refusedf("the name contains a zero byte")
	case len(name) > maxName:
		return "", refusedf("the name is longer than %d bytes", maxName)
	}
	clean := path.Clean(name) // "." for an empty name
	if clean == ".." || strings.HasPrefix(clean, "../") {
		return "", refusedf(`the name contains "..", which leads out of the layer`)
	}
	if clean = strings.TrimLeft(clean, "/"); clean == "" {
		clean = "."
	}
	depth := 0
	for component := range strings.SplitSeq(clean, "/") {
		if len(strings.TrimPrefix(component, whiteoutPrefix)) > maxComponent { // a whiteout is no file: what counts is the name that is gone
			return "", refusedf("the name has a part that is longer than %d bytes", maxComponent)
		}
		depth++
	}
	if depth > maxDepth+1 {
		return "", errTooDeep
	}
	return clean, nil
}

// split returns the directory of a clean name and the name in it, which is empty for the root.
func split(name string) (directory, base string) {
	if name == "." {
		return ".", ""
	}
	directory, base = path.Split(name)
	return path.Clean(directory), base
}

// markOf recognizes whiteouts and what belongs to them.
func markOf(name string) (mark, error) {
	if !strings.Contains(name, whiteoutPrefix) {
		return mark{}, nil
	}
	directory, base := split(name)
	for component := range strings.SplitSeq(directory, "/") {
		if strings.HasPrefix(component, metaPrefix) {
			return mark{ignored: true}, nil
		}
		// The name that a whiteout has in the layer may be 255 bytes longer than what a file can
		// have.
		if len(component) > maxComponent {
			return mark{}, refusedf("the name has a part that is longer than %d bytes", maxComponent)
		}
	}
	switch {
	case base == opaqueName:
		return mark{directory: directory, opaque: true}, nil
	case strings.HasPrefix(base, metaPrefix):
		return mark{ignored: true}, nil
	case !strings.HasPrefix(base, whiteoutPrefix):
		return mark{}, nil
	}
	gone := strings.TrimPrefix(base, whiteoutPrefix)
	if gone == "" || gone == "." || gone == ".." {
		return mark{}, refusedf("the whiteout names nothing")
	}
	return mark{directory: directory, whiteout: gone}, nil
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

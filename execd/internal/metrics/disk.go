package metrics

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// disk returns the size of the file system that has the sandbox's files, and the part in use, in
// bytes.
func disk(path string) (total, used uint64, err error) {
	var found unix.Statfs_t
	if err := unix.Statfs(path, &found); err != nil {
		return 0, 0, fmt.Errorf("measure the file system of %s: %w", path, err)
	}
	block := uint64(max(found.Bsize, 0)) //nolint:gosec // not negative
	return found.Blocks * block, (found.Blocks - min(found.Bfree, found.Blocks)) * block, nil
}

package users

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Blocks lie where neither the users of a host are nor those that useradd(8) and systemd give to
// containers, as far as there is room: these end at 0x6fffffff, and the last ids that are positive
// numbers are systemd's again.
const (
	rangesOfBlock = 1024
	blockSize     = rangesOfBlock * Size
	highestBlock  = 0x78000000
	lowestBlock   = 0x40000000
)

// claim returns where the block of ids begins that the service with this data has.
func claim(claims, data string) (int, error) {
	if err := os.MkdirAll(claims, 0o711); err != nil {
		return 0, err
	}
	unlock, err := lock(claims)
	if err != nil {
		return 0, err
	}
	defer unlock()
	free := 0
	for block := highestBlock; block >= lowestBlock; block -= blockSize {
		owner, err := os.Readlink(claimOf(claims, block))
		switch {
		case owner == data:
			return block, nil
		case errors.Is(err, os.ErrNotExist), err == nil && isGone(owner):
			free = max(free, block)
		case err != nil:
			return 0, err
		}
	}
	if free == 0 {
		return 0, fmt.Errorf("%s: other services have all of them", claims)
	}
	path := claimOf(claims, free)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, err
	}
	return free, os.Symlink(data, path)
}

// ReleaseBlock makes the block of ids of a service available to others. The service has no
// container. Without a block there is nothing to do.
func ReleaseBlock(claims, data string) error {
	unlock, err := lock(claims)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	for block := highestBlock; block >= lowestBlock; block -= blockSize {
		if owner, _ := os.Readlink(claimOf(claims, block)); owner == data {
			return os.Remove(claimOf(claims, block))
		}
	}
	return nil
}

// claimOf is the link of a block, named by its first id.
func claimOf(claims string, block int) string { return filepath.Join(claims, strconv.Itoa(block)) }

// isGone reports whether a service was removed.
func isGone(data string) bool {
	_, err := os.Lstat(data)
	return errors.Is(err, os.ErrNotExist)
}

// lock keeps other services from the directory of claims until unlock is called.
func lock(claims string) (unlock func(), err error) {
	directory, err := os.Open(claims)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(directory.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", claims, err), directory.Close())
	}
	return func() { _ = directory.Close() }, nil
}

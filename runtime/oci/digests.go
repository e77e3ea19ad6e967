package oci

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// fileDigests has the digests of files, which are read again only when they have changed.
type fileDigests struct {
	mu    sync.Mutex
	known map[string]fileDigest
}

type fileDigest struct {
	stat   [4]int64
	digest string
}

// of returns the digest of a file.
func (d *fileDigests) of(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	var info unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &info); err != nil {
		return "", &os.PathError{Op: "stat", Path: path, Err: err}
	}
	stat := [4]int64{int64(info.Ino), info.Size, info.Mtim.Nano(), info.Ctim.Nano()} //nolint:gosec // compared, and no more
	d.mu.Lock()
	defer d.mu.Unlock()
	if known, ok := d.known[path]; ok && known.stat == stat {
		return known.digest, nil
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return "", err
	}
	if d.known == nil {
		d.known = map[string]fileDigest{}
	}
	digest := hex.EncodeToString(hash.Sum(nil)[:16])
	d.known[path] = fileDigest{stat, digest}
	return digest, nil
}

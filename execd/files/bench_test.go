package files_test

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"sandbox.internal/execd/files"
)

const benchSize = 256 << 20

// content delivers n bytes in pieces of at most 4 KiB, as a form parser does.
type content struct{ left int }

func (c *content) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, io.EOF
	}
	n := min(len(p), c.left, 4096)
	for i := 0; i < n; i += 512 {
		p[i] = byte(c.left + i)
	}
	c.left -= n
	return n, nil
}

func BenchmarkPlainCopy(b *testing.B) {
	b.SetBytes(benchSize)
	for b.Loop() {
		path := filepath.Join(b.TempDir(), "plain")
		file, err := os.Create(path)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.Copy(file, &content{left: benchSize}); err != nil {
			b.Fatal(err)
		}
		if err := file.Sync(); err != nil {
			b.Fatal(err)
		}
		file.Close()
		os.Remove(path)
	}
}

func BenchmarkUpload(b *testing.B) {
	f := files.New(files.Options{Root: b.TempDir()})
	b.SetBytes(benchSize)
	for b.Loop() {
		path := filepath.Join(b.TempDir(), "upload")
		up, err := f.Begin(files.UploadMeta{Path: path})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.Copy(up, &content{left: benchSize}); err != nil {
			b.Fatal(err)
		}
		if _, err := up.Commit(); err != nil {
			b.Fatal(err)
		}
		os.Remove(path)
	}
}

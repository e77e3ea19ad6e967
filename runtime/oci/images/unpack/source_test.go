package unpack_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/oci/images/unpack"
)

// gnuSparse is a file of size bytes that begins with 512 bytes of content and has nothing else.
func gnuSparse(size int64) []byte {
	archive := plain(tar.TypeGNUSparse, func(header []byte) {
		copy(header[257:], "ustar  \x00")
		copy(header[124:], "00000001000\x00")
		copy(header[386:], "00000000000\x0000000001000\x00")
		copy(header[483:], fmt.Sprintf("%011o\x00", size))
	})
	return slices.Concat(archive[:512], bytes.Repeat([]byte("c"), 512), make([]byte, 1024))
}

// TestHoles: what an archive has no bytes for, or zeros, takes nothing of the disk.
func TestHoles(t *testing.T) {
	const size = 1 << 30
	noise := func(n int) string { return strings.Repeat("noise", n/5) }
	mixed := noise(100_000) + string(make([]byte, 300_000)) + noise(70_000) + string(make([]byte, 200_000)) + "end"
	for name, test := range map[string]struct {
		archive []byte
		content string // as far as it is not zero
		size    int64
		takes   int64 // at most
	}{
		"GNU sparse":           {gnuSparse(size), strings.Repeat("c", 512), size, 128 << 10},
		"zeros":                {archive(t, entry{name: "name", content: string(make([]byte, 5<<20))}), "", 5 << 20, 4096},
		"zeros, short":         {archive(t, entry{name: "name", content: string(make([]byte, 10))}), "", 10, 4096},
		"zeros in the middle":  {archive(t, entry{name: "name", content: mixed}), mixed, int64(len(mixed)), 400_000},
		"zeros at the end":     {archive(t, entry{name: "name", content: noise(65_540) + string(make([]byte, 1<<20))}), noise(65_540), 65_540 + 1<<20, 140_000},
		"no zeros":             {archive(t, entry{name: "name", content: noise(1_000_000)}), noise(1_000_000), 1_000_000, 1_010_000},
		"a few zeros, written": {archive(t, entry{name: "name", content: "a" + string(make([]byte, 8192)) + "b"}), "a" + string(make([]byte, 8192)) + "b", 8194, 12288},
	} {
		t.Run(name, func(t *testing.T) {
			y := newYard(t)
			var reserved int64
			result, err := unpack.Layer(t.Context(), y.layer, bytes.NewReader(test.archive), &unpack.Limits{Bytes: 2 * size, Entries: 10},
				func(n int64) error { reserved += n; return nil })
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(y.layer, "name")
			var stat unix.Stat_t
			if err := unix.Stat(path, &stat); err != nil {
				t.Fatal(err)
			}
			if stat.Size != test.size || stat.Blocks*512 > test.takes || reserved != result.Bytes || reserved > test.takes+512 {
				t.Errorf("%d bytes, which take %d; reserved %d, %+v", stat.Size, stat.Blocks*512, reserved, result)
			}
			file, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = file.Close() }()
			found := make([]byte, min(test.size, 8<<20))
			if _, err := io.ReadFull(file, found); err != nil {
				t.Fatal(err)
			}
			if got := string(bytes.TrimRight(found, "\x00")); got != test.content {
				t.Errorf("content of %d bytes, want %d", len(got), len(test.content))
			}
		})
	}
}

// brokenReader fails after some bytes.
type brokenReader struct {
	source io.Reader
	err    error
}

func (r *brokenReader) Read(p []byte) (int, error) {
	n, err := r.source.Read(p)
	if err == io.EOF {
		err = r.err
	}
	return n, err
}

// TestErrorOfSource: a failed download is not the layer's fault.
func TestErrorOfSource(t *testing.T) {
	broken := errors.New("broken")
	whole := archive(t, entry{name: "file", content: strings.Repeat("x", 5000)})
	for _, n := range []int{0, 100, 512, 2048, len(whole)} {
		_, err := unpack.Layer(t.Context(), newYard(t).layer, &brokenReader{bytes.NewReader(whole[:n]), broken}, limits(), nil)
		if !errors.Is(err, broken) || errors.Is(err, unpack.ErrRefused) {
			t.Errorf("after %d bytes: %v", n, err)
		}
	}
}

func TestEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var read atomic.Int64
	endless := readerFunc(func(p []byte) (int, error) {
		if read.Add(int64(len(p))) > 1<<20 {
			cancel()
		}
		clear(p)
		return len(p), nil
	})
	header := archive(t, entry{name: "file"})[:1024] // PAX: more than one block
	_, err := unpack.Layer(ctx, newYard(t).layer, io.MultiReader(bytes.NewReader(header), endless),
		&unpack.Limits{Bytes: 1 << 40, Entries: 10}, nil)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// TestEndlessHeaders: an archive of nothing but headers about headers is bounded by what it
// decompresses to.
func TestEndlessHeaders(t *testing.T) {
	block := plain('x', func(header []byte) { copy(header[124:], "00000000000\x00") })[:512]
	at := 0
	endless := readerFunc(func(p []byte) (int, error) {
		n := copy(p, block[at:])
		at = (at + n) % len(block)
		return n, nil
	})
	_, err := unpack.Layer(t.Context(), newYard(t).layer, endless, limits(), nil)
	if !errors.Is(err, unpack.ErrRefused) {
		t.Errorf("error %v", err)
	}
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

package images_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"

	"sandbox.internal/runtime/oci/images"
)

const (
	benchLayers     = 4
	benchLayerBytes = 40 << 20
)

// goFiles are archives of the files of the Go installation that runs the benchmark: sources and
// programs, small and large files.
func goFiles(b testing.TB) [][]byte {
	b.Helper()
	out := must(exec.CommandContext(b.Context(), "go", "env", "GOROOT").Output())(b)
	root := strings.TrimSpace(string(out))
	var archives [][]byte
	buffer := &bytes.Buffer{}
	w := tar.NewWriter(buffer)
	for copies := 0; len(archives) < benchLayers; copies++ {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			name := fmt.Sprintf("go%d%s", copies, strings.TrimPrefix(path, root))
			if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), Typeflag: tar.TypeReg}); err != nil {
				return err
			}
			if _, err := w.Write(content); err != nil {
				return err
			}
			if buffer.Len() < benchLayerBytes {
				return nil
			}
			if err := w.Close(); err != nil {
				return err
			}
			archives = append(archives, buffer.Bytes())
			buffer = &bytes.Buffer{}
			w = tar.NewWriter(buffer)
			if len(archives) == benchLayers {
				return fs.SkipAll
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	return archives
}

// benchImage is an image of about 160 MiB in four layers.
func benchImage(b testing.TB, compression string) v1.Image {
	b.Helper()
	image := empty.Image
	file := must(image.ConfigFile())(b).DeepCopy()
	file.OS = "linux"
	for _, archive := range goFiles(b) {
		var packed bytes.Buffer
		mediaType := types.DockerLayer
		switch compression {
		case "gzip":
			w := gzip.NewWriter(&packed)
			_, _ = w.Write(archive)
			_ = w.Close()
		case "zstd":
			mediaType = types.OCILayerZStd
			w := must(zstd.NewWriter(&packed))(b)
			_, _ = w.Write(archive)
			_ = w.Close()
		}
		diffID, _, err := v1.SHA256(bytes.NewReader(archive))
		if err != nil {
			b.Fatal(err)
		}
		file.RootFS.DiffIDs = append(file.RootFS.DiffIDs, diffID)
		image = must(mutate.AppendLayers(image, static.NewLayer(packed.Bytes(), mediaType)))(b)
	}
	return must(mutate.ConfigFile(image, file))(b)
}

// BenchmarkPull pulls an image from a registry in this process, into an empty store.
func BenchmarkPull(b *testing.B) {
	for _, compression := range []string{"gzip", "zstd"} {
		b.Run(compression, func(b *testing.B) {
			ref := newRegistry(b).push(b, "bench:1", benchImage(b, compression))
			b.SetBytes(benchLayers * benchLayerBytes)
			for b.Loop() {
				b.StopTimer()
				directory := filepath.Join(b.TempDir(), "images")
				s := must(images.Open(images.Options{Directory: directory}))(b)
				b.StartTimer()
				ensure(b, s, ref)
				b.StopTimer()
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
				if err := os.RemoveAll(directory); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

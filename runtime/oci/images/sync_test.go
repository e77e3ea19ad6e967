package images_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sandbox.internal/runtime/oci/images"
)

// TestSyncFails: what could not be made safe on the disk is tried again, after a while and at the
// end.
func TestSyncFails(t *testing.T) {
	archive := saved(t, map[string]v1.Image{"image:1": newImage(t, v1.Config{}, randomLayer(t, 100))})
	for name, tryAgain := range map[string]func(t *testing.T, s *images.Store){
		"after a while": func(*testing.T, *images.Store) {
			time.Sleep(11 * time.Second) // of the clock of synctest
			synctest.Wait()
		},
		"at the end": func(t *testing.T, s *images.Store) {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				directory := filepath.Join(t.TempDir(), "images")
				s := open(t, images.Options{Directory: directory})
				var obstacle string
				_, err := s.Load(t.Context(), bytes.NewReader(archive), func(sentence string) {
					if obstacle == "" && strings.HasPrefix(sentence, "loading: 1 of 1 layers") {
						obstacle = obstruct(t, directory)
					}
				})
				if err != nil || obstacle == "" {
					t.Fatal(err)
				}
				synctest.Wait()
				if s.Safe() {
					t.Fatal("the record of the layer was replaced in spite of the obstacle")
				}
				if err := os.RemoveAll(obstacle); err != nil {
					t.Fatal(err)
				}
				tryAgain(t, s)
				if !s.Safe() {
					t.Error("not everything is known to be safe on the disk")
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				if entries, err := os.ReadDir(filepath.Join(directory, "making")); err != nil || len(entries) != 0 {
					t.Errorf("being made: %v, %v", entries, err)
				}
			})
		})
	}
}

// obstruct makes a directory of the record of the only layer, so that it cannot be replaced.
func obstruct(t *testing.T, directory string) string {
	t.Helper()
	records := must(filepath.Glob(filepath.Join(directory, "layers", "*", "layer.json")))(t)
	if len(records) != 1 {
		t.Fatalf("records %v", records)
	}
	if err := os.Remove(records[0]); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(records[0], "file"), "x")
	return records[0]
}

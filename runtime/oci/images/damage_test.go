package images_test

import (
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sandbox.internal/runtime/oci/images"
	"sandbox.internal/test/wait"
)

func TestOpenRefuses(t *testing.T) {
	for _, o := range []images.Options{{Directory: "relative"}, {}, {Directory: "/nowhere", MaxBytes: -1}, {Directory: "/nowhere", Grace: -1},
		{Directory: "/proc/version/images"}} {
		if s, err := images.Open(o); err == nil {
			_ = s.Close()
			t.Errorf("%+v was accepted", o)
		}
	}
}

// TestDamage: a store opens after everything that a crash, or a person, can do to it.
func TestDamage(t *testing.T) {
	r := newRegistry(t)
	image := newImage(t, v1.Config{}, randomLayer(t, 1000))
	ref := r.push(t, "image:1", image)
	id := must(image.ConfigName())(t).String()
	for name, test := range map[string]struct {
		damage func(t *testing.T, directory string)
		image  bool // it is still here
	}{
		"left half made": {func(t *testing.T, directory string) {
			write(t, filepath.Join(directory, "making", "HALF", "tree", "file"), "x")
			write(t, filepath.Join(directory, "making", "record"), "x")
			write(t, filepath.Join(directory, "trash", "OLD", "file"), "x")
		}, true},
		"layer of an earlier boot": {func(t *testing.T, directory string) {
			rewrite(t, directory, "layers/*/layer.json", `{"bytes":1000,"boot":"another"}`)
		}, false},
		"torn layer record":   {func(t *testing.T, directory string) { rewrite(t, directory, "layers/*/layer.json", "") }, false},
		"torn configuration":  {func(t *testing.T, directory string) { rewrite(t, directory, "images/*.json", `{"os":`) }, false},
		"other configuration": {func(t *testing.T, directory string) { rewrite(t, directory, "images/*.json", `{"os":"linux"}`) }, false},
		"torn name":           {func(t *testing.T, directory string) { rewrite(t, directory, "names/*.json", "") }, false},
		"name of another": {func(t *testing.T, directory string) {
			rewrite(t, directory, "names/*.json", `{"name":"x","image":"`+id+`"}`)
		}, false},
		"missing layer": {func(t *testing.T, directory string) {
			if err := os.RemoveAll(filepath.Join(directory, "layers")); err != nil {
				t.Fatal(err)
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			directory := filepath.Join(t.TempDir(), "images")
			s := open(t, images.Options{Directory: directory})
			ensure(t, s, ref)
			wait.Until(t, "everything is safe on the disk", s.Safe)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			test.damage(t, directory)
			s = open(t, images.Options{Directory: directory})
			found := false
			for _, image := range s.List() {
				found = found || len(image.Names) > 0
			}
			if found != test.image {
				t.Errorf("the image is here: %v, want %v", found, test.image)
			}
			ensure(t, s, ref)
			wantOnly(t, directory, 1, 1, 1)
			wait.Until(t, "the trash is empty", func() bool {
				entries, err := os.ReadDir(filepath.Join(directory, "trash"))
				return err == nil && len(entries) == 0
			})
		})
	}
}

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func rewrite(t testing.TB, directory, pattern, content string) {
	t.Helper()
	matches := must(filepath.Glob(filepath.Join(directory, pattern)))(t)
	if len(matches) == 0 {
		t.Fatalf("no %s", pattern)
	}
	for _, path := range matches {
		write(t, path, content)
	}
}

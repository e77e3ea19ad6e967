package files_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandbox.internal/execd/files"
)

// TestSymlink: a link is made as it is asked for, with its parents, and replaces what is there but
// a directory.
func TestSymlink(t *testing.T) {
	t.Parallel()
	f, dir := newFiles(t)
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "new", "link")
	for _, target := range []string{"../nowhere", outside, "bytes \xff\xfe", strings.Repeat("a/", 2047) + "b"} {
		if _, err := f.Symlink(files.UploadMeta{Path: path}, []byte(target)); err != nil {
			t.Fatalf("%.40q: %v", target, err)
		}
		if got, err := os.Readlink(path); err != nil || got != target {
			t.Errorf("the link has the target %.40q, %v, want %.40q", got, err, target)
		}
		infos, err := f.Info([]string{path})
		if err != nil || infos[path].Type != files.TypeSymlink || infos[path].Target != target {
			t.Errorf("the facts are %.100v, %v", infos, err)
		}
		var listed []string
		err = f.List(t.Context(), filepath.Dir(path), 1, func(info files.Info) error {
			listed = append(listed, info.Target)
			return nil
		})
		if err != nil || len(listed) != 1 || listed[0] != target {
			t.Errorf("the list has %.100q, %v", listed, err)
		}
	}
	if content, err := os.ReadFile(outside); err != nil || string(content) != "untouched" {
		t.Errorf("the target of a replaced link has %q, %v", content, err)
	}
}

func TestSymlinkRefusals(t *testing.T) {
	t.Parallel()
	f, dir := newFiles(t)
	directory := filepath.Join(dir, "directory")
	if err := os.Mkdir(directory, 0o700); err != nil {
		t.Fatal(err)
	}
	never := filepath.Join(dir, "parent", "never")
	mode := 777
	for name, c := range map[string]struct {
		meta   files.UploadMeta
		target string
		kind   files.Kind
	}{
		"no target":     {files.UploadMeta{Path: never}, "", files.KindInvalid},
		"long target":   {files.UploadMeta{Path: never}, strings.Repeat("x", 4096), files.KindInvalid},
		"NUL byte":      {files.UploadMeta{Path: never}, "a\x00b", files.KindInvalid},
		"mode":          {files.UploadMeta{Path: never, Permission: files.Permission{Mode: &mode}}, "a", files.KindInvalid},
		"other content": {files.UploadMeta{Path: never, Digest: "sha-256=:" + strings.Repeat("A", 43) + "=:"}, "a", files.KindInvalid},
		"slash":         {files.UploadMeta{Path: never + "/"}, "a", files.KindInvalid},
		"directory":     {files.UploadMeta{Path: directory}, "a", files.KindConflict},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := f.Symlink(c.meta, []byte(c.target))
			wantError(t, err, c.kind)
		})
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 { // with the one of newFiles
		t.Errorf("refused links left %v, %v", entries, err)
	}
}

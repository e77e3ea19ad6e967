package files_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/execd/files"
)

func FuzzPaths(f *testing.F) {
	for _, seed := range []string{"", "a", "/", "~", "~/..", "~x", "a/../../b", "//a//", "a\x00", "./~/x", "..", "\xff"} {
		f.Add(seed)
	}
	root := f.TempDir()
	engine := files.New(files.Options{Root: root, Home: root})
	f.Fuzz(func(t *testing.T, path string) {
		infos, err := engine.Info([]string{path})
		if err != nil {
			if kind := files.KindOf(err); kind != files.KindInvalid && kind != files.KindNotFound && kind != files.KindPermission {
				t.Errorf("%q: kind %d: %v", path, kind, err)
			}
			return
		}
		got := infos[path].Path
		if !filepath.IsAbs(got) || filepath.Clean(got) != got {
			t.Errorf("%q became %q, which is not absolute and clean", path, got)
		}
		if again, err := engine.Info([]string{got}); err != nil || again[got].Path != got {
			t.Errorf("%q became %q, which became %q (%v)", path, got, again[got].Path, err)
		}
	})
}

func FuzzGlob(f *testing.F) {
	for _, seed := range []string{
		"", "**", "*.txt", "a/**/b", "{a,b}", "[a-z]", "[", "{", "\\", "[^a]*", "**/", "/x", "a//b", "{a,{b,c}}/**", "***", "\xff", "..",
	} {
		f.Add(seed)
	}
	engine, root := newFiles(f)
	makeSources(f, root)
	everything, err := search(f.Context(), engine, root, "")
	must(f, err)
	f.Fuzz(func(t *testing.T, pattern string) {
		found, err := search(t.Context(), engine, root, pattern)
		if err != nil {
			wantError(t, err, files.KindInvalid, "pattern")
			return
		}
		all := paths(everything, root)
		for _, path := range paths(found, root) {
			if !slices.Contains(all, path) {
				t.Errorf("%q found %q, which is not there", pattern, path)
			}
		}
		if strings.Trim(pattern, "*") == "" && len(pattern) == 2 && len(found) != len(all) {
			t.Errorf("%q found %d of %d", pattern, len(found), len(all))
		}
	})
}

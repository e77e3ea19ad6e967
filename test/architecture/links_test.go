package architecture_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	fenced   = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	inline   = regexp.MustCompile("`(?:[^`\n]|\n[^`\n])*`")
	link     = regexp.MustCompile(`\]\(\s*([^)\s]+)\s*\)`)
	heading  = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *$`)
	unslug   = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
	external = regexp.MustCompile(`^[a-z]+:`)
	// named is a page that a comment, a message or a template names by its path.
	named = regexp.MustCompile(`\bdocs/[A-Za-z0-9_/-]+\.md\b`)
)

// TestLinks: every relative link of a page refers to a file, and its fragment to a heading of that
// file. Every page below docs/ that another file names exists.
func TestLinks(t *testing.T) {
	atRoot(t)
	links, names := 0, 0
	for _, file := range textFiles(t) {
		text := read(t, file)
		for _, page := range named.FindAllString(text, -1) {
			names++
			if _, err := os.Stat(page); err != nil {
				t.Errorf("%s names %s, which does not exist", file, page)
			}
		}
		if filepath.Ext(file) != ".md" {
			continue
		}
		for _, match := range link.FindAllStringSubmatch(inline.ReplaceAllString(fenced.ReplaceAllString(text, ""), ""), -1) {
			if external.MatchString(match[1]) {
				continue
			}
			links++
			if err := resolve(t, file, match[1]); err != nil {
				t.Errorf("%s: the link %s is broken: %v", file, match[1], err)
			}
		}
	}
	if links < 50 || names < 10 {
		t.Errorf("only %d links and %d names of pages are found", links, names)
	}
}

// resolve returns an error for a link of a page to a missing file or heading.
func resolve(t *testing.T, page, target string) error {
	t.Helper()
	path, fragment, hasFragment := strings.Cut(target, "#")
	file := page
	if path != "" {
		file = filepath.Join(filepath.Dir(page), path)
	}
	if _, err := os.Stat(file); err != nil {
		return fmt.Errorf("there is no %s", file)
	}
	if !hasFragment {
		return nil
	}
	if filepath.Ext(file) != ".md" {
		return fmt.Errorf("%s is no page, which has headings", file)
	}
	if anchors := anchorsOf(read(t, file)); !slices.Contains(anchors, fragment) {
		return fmt.Errorf("%s has the anchors %q", file, anchors)
	}
	return nil
}

// anchorsOf returns the anchors of a page's headings as GitHub makes them.
func anchorsOf(page string) (anchors []string) {
	for _, match := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(page, ""), -1) {
		text := link.ReplaceAllString(match[1], "]")
		base := strings.ReplaceAll(unslug.ReplaceAllString(strings.ToLower(text), ""), " ", "-")
		anchor := base
		for n := 1; slices.Contains(anchors, anchor); n++ {
			anchor = fmt.Sprintf("%s-%d", base, n)
		}
		anchors = append(anchors, anchor)
	}
	return anchors
}

func TestAnchors(t *testing.T) {
	atRoot(t)
	const page = "# The `a_b` of [C](c.md): d, e-f\n```sh\n# a comment\n```\n## Twice\n### Twice \n"
	if got, want := anchorsOf(page), []string{"the-a_b-of-c-d-e-f", "twice", "twice-1"}; !slices.Equal(
		got,
		want,
	) {
		t.Errorf("%q, not %q", got, want)
	}
	for _, target := range []string{"missing.md", "README.md#no-such-heading", "#no-such-heading", "go.mod#module"} {
		if resolve(t, "README.md", target) == nil {
			t.Errorf("%s resolves", target)
		}
	}
}

// textFiles returns the files of the repository that may link to pages or name them.
func textFiles(t *testing.T) (files []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if path == ".git" || path == "bin" || path == "gen" || entry.Name() == "node_modules" {
				return filepath.SkipDir
			}
			return nil
		}
		kinds := []string{
			".md",
			".go",
			".sh",
			".yaml",
			".yml",
			".tpl",
			".txt",
			".toml",
			".service",
			".Dockerfile",
		}
		if slices.Contains(kinds, filepath.Ext(path)) || entry.Name() == "Makefile" {
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

package identity

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func list(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "list")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestLinesThatAreNoAccounts: they are passed over, and what comes after them counts.
func TestLinesThatAreNoAccounts(t *testing.T) {
	path := list(t, "# comment\n\n:x:0:0::/:\nroot\nroot:x:zero:0::/:\nroot:x:0:4294967296::/:\nroot:x:0:0:a, b:/root:/bin/sh:more\n")
	got, ok := findUser(path, func(u User) bool { return u.UID == 0 })
	if want := (User{Name: "root", Home: "/root"}); !ok || got != want {
		t.Errorf("found %+v, %v, want %+v", got, ok, want)
	}
	if got, ok := findUser(path, func(u User) bool { return u.Name == "nobody" }); ok || got != (User{}) {
		t.Errorf("found %+v, which is not there", got)
	}
}

// TestGroupsOfAUser: the primary group first, and each once.
func TestGroupsOfAUser(t *testing.T) {
	account := User{Name: "joe", UID: 1000, GID: 100}
	got, err := groupsOf(list(t, "a:x:1:joe\nb:x:2:joel,jo\nc:x:3:ann,joe\nusers:x:100:joe\nc:x:3:joe\n"), account)
	if want := []uint32{100, 1, 3}; err != nil || !slices.Equal(got, want) {
		t.Errorf("groups %d, error %v, want %d", got, err, want)
	}
	var many strings.Builder
	for i := range maxGroups {
		fmt.Fprintf(&many, "g%d:x:%d:joe\n", i, 1000+i)
	}
	if _, err := groupsOf(list(t, many.String()), account); !errors.Is(err, ErrTooManyGroups) {
		t.Errorf("%d groups and the primary one: error %v", maxGroups, err)
	}
}

// TestListsThatRootMade: whatever a sandbox's root makes of a list, a look-up ends, and it reads no
// more than maxList bytes.
func TestListsThatRootMade(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	const last = "root:x:0:0::/root:/bin/sh\n"
	endless := list(t, last)
	if err := os.Truncate(endless, 1<<40); err != nil {
		t.Fatal(err)
	}
	beyond := list(t, strings.Repeat("x:x:1:1::/:\n", maxList/12+1)+last)
	anyone := func(User) bool { return true }
	root := func(u User) bool { return u.UID == 0 }
	for name, test := range map[string]struct {
		path  string
		match func(User) bool
		want  bool
	}{
		"a FIFO":                      {fifo, anyone, false},
		"a device without end":        {"/dev/zero", anyone, false},
		"a directory":                 {t.TempDir(), anyone, false},
		"no file":                     {filepath.Join(t.TempDir(), "none"), anyone, false},
		"a line without end":          {list(t, strings.Repeat("x", 2*maxList)), anyone, false},
		"a sparse file after a line":  {endless, root, true},
		"a line beyond what is read":  {beyond, root, false},
		"a line that has no newline":  {list(t, strings.TrimSuffix(last, "\n")), root, true},
		"a line within what is read":  {list(t, strings.Repeat("x:x:1:1::/:\n", 1000)+last), root, true},
		"a name with a colon in home": {list(t, "a:x:7:7::/a:b:c\n"), anyone, true},
	} {
		if _, ok := findUser(test.path, test.match); ok != test.want {
			t.Errorf("%s: found %v, want %v", name, ok, test.want)
		}
	}
}

package treecopy_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/oci/internal/treecopy"
	"sandbox.internal/test/wait"
)

// TestUnchanged: a tree is unchanged until anything of it changes, of whatever kind.
func TestUnchanged(t *testing.T) {
	changes := map[string]func(at func(string) string) error{
		"nothing": func(func(string) string) error { return nil },
		"a file is read, and a directory listed": func(at func(string) string) error {
			_, err := os.ReadFile(at("directory/file"))
			if err == nil {
				_, err = os.ReadDir(at("directory"))
			}
			return err
		},
		"content, with the times of before": func(at func(string) string) error {
			var before unix.Stat_t
			if err := unix.Stat(at("directory/file"), &before); err != nil {
				return err
			}
			if err := os.WriteFile(at("directory/file"), []byte("FILE"), 0o600); err != nil {
				return err
			}
			return unix.UtimesNanoAt(unix.AT_FDCWD, at("directory/file"), []unix.Timespec{before.Atim, before.Mtim}, 0)
		},
		"a mode":               func(at func(string) string) error { return os.Chmod(at("directory/file"), 0o640) },
		"the mode of the root": func(at func(string) string) error { return os.Chmod(at("."), 0o700) },
		"an extended attribute": func(at func(string) string) error {
			return unix.Setxattr(at("directory"), "user.x", []byte("y"), 0)
		},
		"a new file":          func(at func(string) string) error { return os.WriteFile(at("directory/new"), nil, 0o600) },
		"a removed directory": func(at func(string) string) error { return os.Remove(at("empty")) },
		"a name":              func(at func(string) string) error { return os.Rename(at("fifo"), at("pipe")) },
		"a second name":       func(at func(string) string) error { return os.Link(at("directory/file"), at("second")) },
		"two files in each other's place": func(at func(string) string) error {
			return unix.Renameat2(unix.AT_FDCWD, at("fifo"), unix.AT_FDCWD, at("link"), unix.RENAME_EXCHANGE)
		},
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first := newJob(t)
			at := func(name string) string { return filepath.Join(first.source, name) }
			write(t, at("directory/file"), "file")
			must(t, os.Mkdir(at("empty"), 0o755))
			must(t, os.Symlink("directory", at("link")))
			must(t, unix.Mkfifo(at("fifo"), 0o600))
			again := func() treecopy.Result {
				j := newJob(t)
				j.From = first.From
				result, err := j.Compare(t.Context(), j.to, time.Now())
				must(t, err)
				return result
			}
			var result treecopy.Result
			wait.Until(t, "the changes of all six entries are past", func() bool {
				result = again()
				return len(result.Index) == 6
			})
			must(t, change(at))
			second := newJob(t)
			second.From, second.Previous = first.From, &treecopy.Tree{Root: first.to, Index: result.Index}
			want := name == "nothing" || name == "a file is read, and a directory listed"
			if got, err := second.Unchanged(t.Context()); err != nil || got != want {
				t.Errorf("unchanged: %v (%v), want %v", got, err, want)
			}
			second.Previous = nil
			if got, err := second.Unchanged(t.Context()); err != nil || got {
				t.Errorf("without an earlier copy: unchanged: %v (%v)", got, err)
			}
		})
	}
}

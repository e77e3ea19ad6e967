package files_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/execd/files"
)

// liveHeap is how many bytes are in use after a collection.
func liveHeap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// TestWalkHoldsLittle: a directory of 100 000 files with long names and thousands of owners is
// searched and listed in its order, and the walk holds no more than its share at any moment.
func TestWalkHoldsLittle(t *testing.T) {
	f, _ := newFiles(t)
	disk := mountTmpfs(t, "size=512m,nr_inodes=200000")
	const count = 100_000
	long := strings.Repeat("n", 100)
	for i := range count {
		// The order in which tmpfs lists them is none that a walk could use.
		number := (i * 7919) % count
		path := fmt.Sprintf("%s/%06d%s", disk, number, long)
		must(t, unix.Mknod(path, unix.S_IFREG|0o644, 0))
		must(t, os.Lchown(path, 100_000+number/20, 100_000+number/20))
	}
	for name, walk := range map[string]func(found func(files.Info) error) error{
		"search": func(found func(files.Info) error) error { return f.Search(t.Context(), disk, "**", found) },
		"list":   func(found func(files.Info) error) error { return f.List(t.Context(), disk, 1, found) },
	} {
		t.Run(name, func(t *testing.T) {
			before := liveHeap()
			seen, last := 0, ""
			must(t, walk(func(info files.Info) error {
				if info.Path <= last {
					t.Fatalf("%s comes after %s", info.Path, last)
				}
				last = info.Path
				if seen%20_000 == 1 {
					if now := liveHeap(); now > before+20<<20 {
						t.Errorf("after %d files the walk holds %d MiB", seen, (now-before)>>20)
					}
				}
				seen++
				return nil
			}))
			wantEqual(t, "found", seen, count)
		})
	}
}

// TestWalkOfDirectoriesThatDoNotFit: directories that are each read in several passes, one inside
// of the other.
func TestWalkOfDirectoriesThatDoNotFit(t *testing.T) {
	f, _ := newFiles(t)
	files.WithWalkMemory(f, 16<<10)
	disk := mountTmpfs(t, "size=256m")
	var want, directories []string
	dir := disk
	for level := range 8 {
		for i := range 500 { // 30 KiB of names
			name := fmt.Sprintf("%s/%03d-%s", dir, (i*7)%500, strings.Repeat("x", 40))
			must(t, unix.Mknod(name, unix.S_IFREG|0o644, 0))
			want = append(want, name)
		}
		for _, sibling := range []string{"/250-", "/000", "/250.", "/999"} {
			mkdir(t, fmt.Sprintf("%s%s%02d", dir, sibling, level))
			directories = append(directories, fmt.Sprintf("%s%s%02d", dir, sibling, level))
		}
		dir = fmt.Sprintf("%s/250-%02d", dir, level)
	}
	slices.Sort(want)
	found, err := search(t.Context(), f, disk, "*x")
	must(t, err)
	wantPaths(t, "found", found, want)
	want = append(want, directories...)
	slices.Sort(want)
	listed, err := list(t.Context(), f, disk, 100)
	must(t, err)
	wantPaths(t, "listed", listed, want)
}

func wantPaths(t *testing.T, what string, got []files.Info, want []string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d paths, want %d", what, len(got), len(want))
	}
	for i := range min(len(got), len(want)) {
		if got[i].Path != want[i] {
			t.Fatalf("%s: path %d is %s, want %s", what, i, got[i].Path, want[i])
		}
	}
}

// TestWalkEndsWithItsReceiver: what the receiver returns ends the walk, from any depth.
func TestWalkEndsWithItsReceiver(t *testing.T) {
	f, root := newFiles(t)
	makeSources(t, filepath.Join(root, "src"))
	enough := errors.New("enough")
	for stop := range 10 {
		seen := 0
		err := f.Search(t.Context(), "src", "**", func(files.Info) error {
			if seen == stop {
				return enough
			}
			seen++
			return nil
		})
		if !errors.Is(err, enough) || seen != stop {
			t.Errorf("ended after %d of %d with %v", seen, stop, err)
		}
	}
}

package remove

import (
	"os"
	"strconv"
	"testing"
)

// TestPasses: a directory is read few times, however much is in it.
func TestPasses(t *testing.T) {
	directory := t.TempDir()
	for i := range 20_000 {
		if err := os.Symlink("nothing", directory+"/"+strconv.Itoa(i)); err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.Open(directory)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	counted := &counting{File: file}
	r := remover{ctx: t.Context(), top: int(file.Fd())}
	if err := r.empty(counted, int(file.Fd()), 0); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(directory); err != nil || len(left) != 0 {
		t.Errorf("%d are left, %v", len(left), err)
	}
	if counted.seeks > 3 {
		t.Errorf("the directory was read %d times", counted.seeks)
	}
}

// counting counts how often a directory is read from its begin.
type counting struct {
	*os.File
	seeks int
}

func (c *counting) Seek(offset int64, whence int) (int64, error) {
	c.seeks++
	return c.File.Seek(offset, whence)
}

package network

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCloseOfAnothersDescriptor: the number of a namespace's descriptor that is another file's by
// now is left alone.
func TestCloseOfAnothersDescriptor(t *testing.T) {
	file, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var info unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &info); err != nil {
		t.Fatal(err)
	}
	(&namespace{fd: int(file.Fd()), inode: info.Ino + 1}).close()
	if err := unix.Fstat(int(file.Fd()), &info); err != nil {
		t.Errorf("the other file was closed: %v", err)
	}
}

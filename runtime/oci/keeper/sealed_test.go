package keeper

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSealedPrograms: a copy is one for as long as the program is the same, cannot be written to,
// and is executed.
func TestSealedPrograms(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	copyFile := func(from string) {
		t.Helper()
		content, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(program+".new", content, 0o755)
		}
		if err == nil {
			err = os.Rename(program+".new", program)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	var p programs
	inode := func() uint64 {
		t.Helper()
		fd, err := p.open(program)
		if err != nil {
			t.Fatal(err)
		}
		seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
		if want := unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE; err != nil || seals != want {
			t.Errorf("seals %#x, %v; want %#x, which is what runtimes compare with", seals, err, want)
		}
		defer unix.Close(fd)
		files := slices.Repeat([]uintptr{null.Fd()}, 2*fd) // which get the number of the copy, too
		pid, err := syscall.ForkExec(executable(fd), []string{"program", "word"}, &syscall.ProcAttr{Files: files})
		if err != nil {
			t.Fatalf("the copy is not executed: %v", err)
		}
		var status unix.WaitStatus
		if _, err := unix.Wait4(pid, &status, 0, nil); err != nil || !status.Exited() || status.ExitStatus() != 0 {
			t.Errorf("the copy ended with %v, %v", status, err)
		}
		var stat unix.Stat_t
		if err := unix.Fstat(fd, &stat); err != nil {
			t.Fatal(err)
		}
		return stat.Ino
	}
	copyFile("/bin/echo")
	first, second := inode(), inode()
	if first != second {
		t.Error("the program was copied twice")
	}
	copyFile("/bin/true")
	if inode() == first {
		t.Error("another program has the copy of the one before")
	}
	if _, err := p.open(program + ".missing"); err == nil {
		t.Error("a missing program has a copy")
	}
}

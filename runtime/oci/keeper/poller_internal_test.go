package keeper

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPollerReportsErrors: a descriptor that cannot be waited for is not taken for one that is.
func TestPollerReportsErrors(t *testing.T) {
	p, err := newPoller()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(p.epoll)
	file, err := os.Create(t.TempDir() + "/file") // the kernel polls no regular file
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if err := p.add(int(file.Fd()), func() {}); !errors.Is(err, unix.EPERM) || len(p.calls) != 0 {
		t.Errorf("add: %v, and %d calls are kept", err, len(p.calls))
	}
}

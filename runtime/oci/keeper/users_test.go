package keeper_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/keeper"
	"sandbox.internal/test/random"
	"sandbox.internal/test/wait"
)

// ids are 65536 that no user of the host has, and the one of its root.
var ids = []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0x7c000000, Size: 1 << 16}, {ContainerID: 1 << 16, HostID: 0, Size: 1}}

// TestUserNamespace: a mount with the namespace shows the files of 0 and so on as those of the ids,
// and the process that it took is gone.
func TestUserNamespace(t *testing.T) {
	h := newHost(t)
	namespace, err := h.client.UserNamespace(ids, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer namespace.Close()
	directory := t.TempDir()
	for _, owner := range []int{0, 1000, 1 << 16} {
		path := filepath.Join(directory, fmt.Sprint(owner))
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Lchown(path, owner, owner)); err != nil {
			t.Fatal(err)
		}
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, directory, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(tree)
	attributes := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(namespace.Fd())}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attributes); err != nil {
		t.Fatalf("%s cannot be mapped: %v", directory, err)
	}
	for owner, want := range map[int]int{0: 0x7c000000, 1000: 0x7c000000 + 1000, 1 << 16: 0} {
		var info unix.Stat_t
		if err := unix.Fstatat(tree, fmt.Sprint(owner), &info, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			t.Fatal(err)
		}
		if int(info.Uid) != want || int(info.Gid) != want {
			t.Errorf("a file of %d on the disk belongs to %d:%d, want %d", owner, info.Uid, info.Gid, want)
		}
	}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", h.client.PID()))
	if err != nil || len(tasks) == 0 {
		t.Fatal("the keeper's children cannot be listed: ", err)
	}
	for _, path := range tasks {
		if children := read(t, path); strings.TrimSpace(children) != "" {
			t.Errorf("children %q are left", children)
		}
	}
}

// TestUserNamespaceOfAnotherUser: the kernel reports the owner that was asked for, and no thread of
// the keeper has become it.
func TestUserNamespaceOfAnotherUser(t *testing.T) {
	h := newHost(t)
	owner := ids[0].HostID
	namespace, err := h.client.UserNamespace(ids[:1], owner)
	if err != nil {
		t.Fatal(err)
	}
	defer namespace.Close()
	var got uint32
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, namespace.Fd(), unix.NS_GET_OWNER_UID, uintptr(unsafe.Pointer(&got))); errno != 0 {
		t.Fatal(errno)
	}
	if int(got) != owner {
		t.Errorf("the namespace belongs to %d, want %d", got, owner)
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", h.client.PID()))
	if err != nil || len(threads) == 0 {
		t.Fatal("the keeper's threads cannot be listed: ", err)
	}
	for _, path := range threads {
		if status, err := os.ReadFile(path); err == nil && !strings.Contains(string(status), "\nUid:\t0\t0\t0\t0\n") {
			t.Errorf("%s: %s", path, status)
		}
	}
}

// TestUserNamespaceThatTheKernelRefuses: the answer says why, and the keeper goes on.
func TestUserNamespaceThatTheKernelRefuses(t *testing.T) {
	h := newHost(t)
	before := h.client.PID()
	namespace, err := h.client.UserNamespace([]syscall.SysProcIDMap{{ContainerID: 0, HostID: 1, Size: 10}, {ContainerID: 5, HostID: 100, Size: 10}}, 0)
	if err == nil || errors.Is(err, engine.ErrUnavailable) || !strings.Contains(err.Error(), "invalid argument") {
		t.Errorf("ids that overlap: %v, %v", namespace, err)
	}
	if namespace, err = h.client.UserNamespace(ids, 0); err != nil {
		t.Fatal(err)
	}
	defer namespace.Close()
	if h.client.PID() != before {
		t.Error("the keeper was replaced")
	}
}

// TestKeeperKilledWhileItMakesUserNamespaces: every call gets a namespace or an error, and no
// process and no descriptor is left (newHost looks for processes of the keeper's at the end).
func TestKeeperKilledWhileItMakesUserNamespaces(t *testing.T) {
	h := newHost(t)
	const rounds = 40
	made, refused := 0, 0
	var mu sync.Mutex
	descriptors := func() int {
		open, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(open)
	}
	before := descriptors()
	moments := random.New(t)
	for round := range rounds {
		pid, had := h.client.PID(), made
		inside := round%2 == 0 // is it killed while it makes one; else some time after it has
		if inside {
			if err := armed.Arm(keeper.UserNamespaceFailpoint, 1); err != nil {
				t.Fatal(err)
			}
		}
		var group sync.WaitGroup
		stop := make(chan struct{})
		for range 8 {
			group.Go(func() {
				for {
					namespace, err := h.client.UserNamespace(ids, 0)
					mu.Lock()
					switch {
					case err == nil:
						made++
						err = namespace.Close()
					case errors.Is(err, engine.ErrUnavailable):
						refused++
						err = nil
					}
					mu.Unlock()
					if err != nil {
						t.Error(err)
					}
					select {
					case <-stop:
						return
					default:
					}
				}
			})
		}
		if !inside {
			wait.Until(h.t, "a namespace is made", func() bool {
				mu.Lock()
				defer mu.Unlock()
				return made > had
			})
			time.Sleep(time.Duration(moments.IntN(20_000)) * time.Microsecond) // the moment of the kill
			h.killKeeper()
		}
		h.otherKeeper(pid)
		close(stop)
		group.Wait()
	}
	t.Logf("%d namespaces, %d calls cut off", made, refused)
	if refused < rounds/2 {
		t.Errorf("%d calls were cut off, and the keeper was killed %d times within one", refused, rounds/2)
	}
	wait.Until(h.t, "no descriptor is left", func() bool { return descriptors() <= before })
}

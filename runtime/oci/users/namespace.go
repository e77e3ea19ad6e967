package users

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"
)

// starting is held while a process of a new namespace starts. Until this process has given it its ids, it waits for them at a pipe, with
// every open file of this process. Two that wait at once hold each other's pipes open: when this process is killed then, neither ever ends,
// and they keep the lock of the data folder from every later service.
var starting sync.Mutex

// newNamespace makes a user namespace for mounts of the range. A namespace takes a process of its own to be made, which is started as this
// program, runs nothing of it, and is gone when newNamespace returns.
func newNamespace(first int) (*os.File, error) {
	type answer struct {
		file *os.File
		err  error
	}
	made := make(chan answer, 1)
	go func() {
		// The thread that starts a process to trace it is the one that it stops for.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		file, err := namespaceOfChild(first)
		made <- answer{file, err}
	}()
	a := <-made
	return a.file, a.err
}

func namespaceOfChild(first int) (_ *os.File, err error) {
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: first, Size: Size}, {ContainerID: Reserved, HostID: 0, Size: 1}}
	starting.Lock()
	child, err := os.StartProcess("/proc/self/exe", []string{"user-namespace"}, &os.ProcAttr{
		Dir: "/", Env: []string{},
		Sys: &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids,
			Ptrace: true, Pdeathsig: syscall.SIGKILL, // it stops before its first instruction
		},
	})
	starting.Unlock()
	if err != nil {
		return nil, fmt.Errorf("start a process in it: %w", err)
	}
	defer func() {
		if killed := child.Kill(); !errors.Is(killed, os.ErrProcessDone) {
			err = errors.Join(err, killed)
		}
		_, _ = child.Wait()
	}()
	return os.Open("/proc/" + strconv.Itoa(child.Pid) + "/ns/user")
}

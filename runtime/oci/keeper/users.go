package keeper

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"sandbox.internal/internal/failpoint"
	"sandbox.internal/runtime/oci/thread"
)

// UserNamespaceFailpoint is a failpoint of the keeper: the process of a new user namespace runs,
// and the client has no descriptor of it yet.
const UserNamespaceFailpoint = "keeper.user-namespace"

// UserNamespace returns a new user namespace with these ids, of users and of groups alike, that
// belongs to the user owner of the host: what the kernel counts for the users of the namespace, it
// counts for its owner as well. The error wraps [engine.ErrUnavailable] when the keeper ends
// meanwhile, and otherwise says what the kernel has refused.
//
// A namespace takes a process to be made, and the kernel copies the page tables of the one that
// starts it. The keeper's are a tenth of the service's.
func (c *Client) UserNamespace(ids []syscall.SysProcIDMap, owner int) (*os.File, error) {
	// Of a hundred that are asked for at once, none waits for the others in the time that the
	// keeper has for it.
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-c.ctx.Done():
		return nil, unavailable(c.ctx.Err())
	}
	ctx, cancel := context.WithTimeout(c.ctx, usersTimeout)
	defer cancel()
	via, err := c.connected(ctx)
	if err != nil {
		return nil, err
	}
	number, answers, err := via.request(request{Operation: opUsers, IDs: ids, Owner: owner})
	if err != nil {
		return nil, unavailable(err)
	}
	var a answer
	select {
	case a = <-answers:
	case <-via.done:
		err = errLost
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		via.abandon(number, answers)
		return nil, unavailable(err)
	}
	if a.Error != "" || len(a.files) != 1 {
		closeAll(a.files...)
		return nil, fmt.Errorf("keeper: make a user namespace: %s", a.Error)
	}
	return os.NewFile(uintptr(a.files[0]), "user namespace"), nil
}

func (c *connection) handleUsers(number uint64, ids []syscall.SysProcIDMap, owner int) {
	if !c.keeper.acceptWork() {
		return // the connection is about to end
	}
	defer c.keeper.endWork()
	fd, err := c.keeper.userNamespace(ids, owner)
	if err != nil {
		c.reply(response{Number: number, Error: err.Error()})
		return
	}
	c.reply(response{Number: number, Users: true}, fd)
}

// userNamespace returns a descriptor of a new user namespace. Its process is started as this
// program, runs nothing of it, and is gone when userNamespace returns. Until this process has given
// it its ids it waits for them, at a pipe that nothing else holds open: the reaper starts one
// process at a time. So it ends when this process is killed.
func (k *keeper) userNamespace(ids []syscall.SysProcIDMap, owner int) (fd int, err error) {
	if owner == os.Geteuid() {
		return k.userNamespaceHere(ids)
	}
	thread.Run(func() {
		if err = become(owner); err == nil {
			fd, err = k.userNamespaceHere(ids)
		}
	})
	if err != nil {
		return -1, err
	}
	return fd, nil
}

// become makes the user the effective one of this thread, which keeps its capabilities. The thread
// must end afterwards.
func become(user int) error {
	const noSetuidFixup = 1 << 2 // SECBIT_NO_SETUID_FIXUP
	if err := unix.Prctl(unix.PR_SET_SECUREBITS, noSetuidFixup, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	// Go's own function would make it that of all threads.
	same := ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, uintptr(user), same); errno != 0 {
		return os.NewSyscallError("setresuid", errno)
	}
	return nil
}

func (k *keeper) userNamespaceHere(ids []syscall.SysProcIDMap) (int, error) {
	// A process that is traced stops before its first instruction, for the thread that has started
	// it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pid, ended, err := k.reaper.start("/proc/self/exe", []string{"user-namespace"}, &syscall.ProcAttr{
		Dir: "/", Env: []string{},
		Sys: &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true, // programs in it change their groups
			Ptrace: true, Pdeathsig: unix.SIGKILL,
		},
	})
	if err != nil {
		return -1, fmt.Errorf("start a process in it: %w", err)
	}
	defer func() {
		k.reaper.kill(pid)
		<-ended
	}()
	failpoint.Hit(UserNamespaceFailpoint)
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: "the namespace of process " + strconv.Itoa(pid), Err: err}
	}
	return fd, nil
}

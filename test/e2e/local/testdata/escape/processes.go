package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// processes: 1 is execd's, of the sandbox, and must not be changed; the target's process is not
// there.
func processes(target Target) {
	for name, pid := range map[string]int{"process 1": 1, "a process of the host": target.PID} {
		attempt("ptrace "+name, func() error { return unix.PtraceAttach(pid) }, unix.ESRCH)
		attempt("ptrace seize "+name, func() error { return unix.PtraceSeize(pid) }, unix.ESRCH)
		attempt("process_vm_readv "+name, func() error {
			var to [1]byte
			_, err := unix.ProcessVMReadv(pid, []unix.Iovec{{Base: &to[0], Len: 1}}, []unix.RemoteIovec{{Base: 0x400000, Len: 1}}, 0)
			return err
		}, unix.ESRCH)
		attempt("kcmp "+name, func() error {
			_, _, err := unix.Syscall6(unix.SYS_KCMP, uintptr(os.Getpid()), uintptr(pid), 2, 0, 0, 0)
			if err != 0 {
				return err
			}
			return nil
		}, unix.ESRCH)
		attempt("take a descriptor of "+name, func() error {
			process, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				return err
			}
			defer unix.Close(process)
			_, err = unix.PidfdGetfd(process, 3, 0)
			return err
		}, unix.ESRCH)
	}
	attempt("signal a process of the host", func() error { return unix.Kill(target.PID, 0) }, unix.ESRCH)
	attempt("move_pages of process 1", func() error {
		_, _, err := unix.Syscall6(unix.SYS_MOVE_PAGES, 1, 0, 0, 0, 0, 0)
		if err != 0 {
			return err
		}
		return nil
	})
}

package seccomp

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// audited is what the kernel gives one number of an architecture (AUDIT_ARCH_*), and the ABIs that
// share it. With two, the second is x32.
type audited struct {
	audit uint32
	abis  []abi
}

// abi is a way to call the kernel, with numbers of its own.
type abi struct {
	name   specs.Arch
	column int    // in syscalls.txt
	base   uint32 // added to every number
	bits   int    // of an argument
}

// families are the architectures that kernels run, by GOARCH, the machine's own first.
var families = map[string][]audited{
	"amd64": {
		{unix.AUDIT_ARCH_X86_64, []abi{
			{name: specs.ArchX86_64, column: columnAMD64, bits: 64},
			{name: specs.ArchX32, column: columnAMD64, base: x32Bit, bits: 32},
		}},
		{unix.AUDIT_ARCH_I386, []abi{{name: specs.ArchX86, column: column386, bits: 32}}},
	},
	"arm64": {
		{unix.AUDIT_ARCH_AARCH64, []abi{{name: specs.ArchAARCH64, column: columnARM64, bits: 64}}},
		{unix.AUDIT_ARCH_ARM, []abi{{name: specs.ArchARM, column: columnARM, bits: 32}}},
	},
}

// Columns of syscalls.txt.
const (
	columnAMD64 = 1 + iota
	column386
	columnARM64
	columnARM
	columns
)

//go:embed syscalls.txt
var syscallsText string

var parsed = sync.OnceValues(func() ([columns]map[string]uint32, error) {
	var tables [columns]map[string]uint32
	for i := range tables {
		tables[i] = map[string]uint32{}
	}
	for line := range strings.Lines(syscallsText) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] == "#" {
			continue
		}
		if len(fields) != columns {
			return tables, fmt.Errorf("syscalls.txt: %q has not %d fields", line, columns)
		}
		for column := columnAMD64; column < columns; column++ {
			if fields[column] == "-" {
				continue
			}
			number, err := strconv.ParseUint(fields[column], 10, 32)
			if err != nil {
				return tables, fmt.Errorf("syscalls.txt: %w", err)
			}
			tables[column][fields[0]] = uint32(number)
		}
	}
	return tables, nil
})

// privateCalls is where the numbers begin that are an architecture's own, apart from all others.
const privateCalls = 0xf0000

// armPrivate are the private calls of 32-bit ARM, which syscalls.txt lacks.
var armPrivate = map[string]uint32{
	"breakpoint": privateCalls + 1, "cacheflush": privateCalls + 2, "usr26": privateCalls + 3,
	"usr32": privateCalls + 4, "set_tls": privateCalls + 5,
}

// x32Own are the calls that have numbers of their own in the x32 ABI, from x32First on. All others
// have the number of x86-64.
const x32First = 512

var x32Own = []string{
	"rt_sigaction", "rt_sigreturn", "ioctl", "readv", "writev", "recvfrom", "sendmsg", "recvmsg",
	"execve", "ptrace", "rt_sigpending", "rt_sigtimedwait", "rt_sigqueueinfo", "sigaltstack",
	"timer_create", "mq_notify", "kexec_load", "waitid", "set_robust_list", "get_robust_list",
	"vmsplice", "move_pages", "preadv", "pwritev", "rt_tgsigqueueinfo", "recvmmsg", "sendmmsg",
	"process_vm_readv", "process_vm_writev", "setsockopt", "getsockopt", "io_setup", "io_submit",
	"execveat", "preadv2", "pwritev2",
}

// x32Missing are the calls of x86-64 that the x32 ABI lacks.
var x32Missing = []string{
	"uselib", "_sysctl", "create_module", "get_kernel_syms", "query_module", "nfsservctl",
	"set_thread_area", "get_thread_area", "epoll_ctl_old", "epoll_wait_old", "vserver",
}

// table returns the numbers of the system calls by name.
func (a abi) table() (map[string]uint32, error) {
	tables, err := parsed()
	if err != nil {
		return nil, err
	}
	table := map[string]uint32{}
	for name, number := range tables[a.column] {
		table[name] = a.base + number
	}
	switch a.name {
	case specs.ArchARM:
		for name, number := range armPrivate {
			table[name] = number
		}
	case specs.ArchX32:
		for _, name := range x32Missing {
			delete(table, name)
		}
		for i, name := range x32Own {
			table[name] = a.base + x32First + uint32(i)
		}
	}
	return table, nil
}

// compared is how many bits of the arguments of the named call are compared. socket(2) and
// socketpair(2) take 32-bit numbers, of which the kernel ignores the upper half of a register:
// conditions that refuse families, and looked at it, would let every family through.
func (a abi) compared(name string) int {
	if name == "socket" || name == "socketpair" {
		return 32
	}
	return a.bits
}

// socketCalls and ipcCalls are what the first argument of socketcall(2) and ipc(2) means, the two
// calls of 32-bit x86 that stand for others.
var socketCalls = map[string]uint64{
	"socket": 1, "bind": 2, "connect": 3, "listen": 4, "accept": 5, "getsockname": 6,
	"getpeername": 7, "socketpair": 8, "send": 9, "recv": 10, "sendto": 11, "recvfrom": 12,
	"shutdown": 13, "setsockopt": 14, "getsockopt": 15, "sendmsg": 16, "recvmsg": 17,
	"accept4": 18, "recvmmsg": 19, "sendmmsg": 20,
}

var ipcCalls = map[string]uint64{
	"semop": 1, "semget": 2, "semctl": 3, "semtimedop": 4, "msgsnd": 11, "msgrcv": 12,
	"msgget": 13, "msgctl": 14, "shmat": 21, "shmdt": 22, "shmget": 23, "shmctl": 24,
}

// multiplexed returns the other way to make the named call. Its own arguments are then in memory,
// where a filter cannot see them: an entry that permits with conditions does not apply, and one
// that refuses applies whatever the arguments are.
func (a abi) multiplexed(name string, conditions [][]specs.LinuxSeccompArg, do uint32) (target, bool) {
	if a.name != specs.ArchX86 {
		return target{}, false
	}
	carrier, selector := "socketcall", socketCalls[name]
	if selector == 0 {
		carrier, selector = "ipc", ipcCalls[name]
	}
	permits := do == retAllow || do == retLog
	if selector == 0 || permits && len(conditions) > 0 {
		return target{}, false
	}
	table, err := a.table()
	number, ok := table[carrier]
	if err != nil || !ok {
		return target{}, false
	}
	return target{number: number, alternatives: [][]specs.LinuxSeccompArg{
		{{Index: 0, Value: selector, Op: specs.OpEqualTo}},
	}}, true
}

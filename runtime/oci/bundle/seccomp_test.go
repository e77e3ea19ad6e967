package bundle_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
)

// conditions is a profile with every operator, values beyond 32 bits, several arguments, and the
// calls that 32-bit x86 multiplexes.
const conditions = `{
	"defaultAction": "SCMP_ACT_ALLOW",
	"architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
	"syscalls": [
		{"names": ["getpriority"], "action": "SCMP_ACT_ERRNO", "errnoRet": 7,
			"args": [{"index": 0, "value": 5, "op": "SCMP_CMP_NE"}]},
		{"names": ["ioctl"], "action": "SCMP_ACT_ERRNO", "errnoRet": 8,
			"args": [{"index": 1, "value": 240, "valueTwo": 32, "op": "SCMP_CMP_MASKED_EQ"}]},
		{"names": ["mmap"], "action": "SCMP_ACT_ERRNO", "errnoRet": 9,
			"args": [{"index": 0, "value": 4294967338, "op": "SCMP_CMP_EQ"}]},
		{"names": ["mprotect"], "action": "SCMP_ACT_ERRNO", "errnoRet": 10,
			"args": [{"index": 0, "value": 4294967338, "op": "SCMP_CMP_GT"}]},
		{"names": ["munmap"], "action": "SCMP_ACT_ERRNO", "errnoRet": 11,
			"args": [{"index": 0, "value": 4294967338, "op": "SCMP_CMP_GE"}]},
		{"names": ["brk"], "action": "SCMP_ACT_ERRNO", "errnoRet": 12,
			"args": [{"index": 0, "value": 4294967338, "op": "SCMP_CMP_LT"}]},
		{"names": ["madvise"], "action": "SCMP_ACT_ERRNO", "errnoRet": 13,
			"args": [{"index": 0, "value": 4294967338, "op": "SCMP_CMP_LE"}]},
		{"names": ["mremap"], "action": "SCMP_ACT_ERRNO", "errnoRet": 14,
			"args": [{"index": 0, "value": 5, "op": "SCMP_CMP_EQ"}, {"index": 1, "value": 42, "op": "SCMP_CMP_LT"}]},
		{"names": ["kill"], "action": "SCMP_ACT_ERRNO", "errnoRet": 15,
			"args": [{"index": 0, "value": 5, "op": "SCMP_CMP_EQ"}, {"index": 0, "value": 42, "op": "SCMP_CMP_EQ"}]},
		{"names": ["listen", "semget"], "action": "SCMP_ACT_ERRNO", "errnoRet": 16},
		{"names": ["acct"], "action": "SCMP_ACT_KILL_PROCESS"},
		{"names": ["swapon"], "action": "SCMP_ACT_TRAP"},
		{"names": ["swapoff"], "action": "SCMP_ACT_LOG"},
		{"names": ["umask"], "action": "SCMP_ACT_ERRNO", "errnoRet": 17,
			"args": [{"index": 0, "value": 5, "op": "SCMP_CMP_EQ"}]},
		{"names": ["umask"], "action": "SCMP_ACT_ERRNO", "errnoRet": 18},
		{"names": ["no_such_call"], "action": "SCMP_ACT_ERRNO"}
	]
}`

// TestFilter compares the filters that the kernel has of two containers, one compiled by us and one
// by libseccomp: every system call of every architecture, with arguments around the conditions.
func TestFilter(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Fatalf("the profile of this test is for amd64; this is %s", runtime.GOARCH)
	}
	for name, security := range map[string]engine.Security{
		"default":         {},
		"of the service":  {DropCapabilities: serviceDrops, NoNewPrivileges: true},
		"all":             {AddCapabilities: []string{"SYS_ADMIN", "SYS_PTRACE", "SYSLOG", "BPF"}},
		"with conditions": {SeccompProfile: conditions},
	} {
		t.Run(name, func(t *testing.T) {
			ours := filterOf(t, security, true)
			theirs := filterOf(t, security, false)
			compare(t, ours, theirs, security)
		})
	}
}

// unknown reports whether libseccomp 2.5.4, Debian 12's, does not have the call: it is newer.
func unknown(number uint32) bool {
	return number > 450 || number == 335 || number == 336 // uretprobe and uprobe
}

func compare(t *testing.T, ours, theirs *bpf.VM, security engine.Security) {
	newer := allowed(t, security)
	values := []uint64{
		0, 1, 2, 5, 8, 16, 31, 32, 33, 37, 38, 39, 40, 41, 42, 43, 47, 48, 0x20000, 0x20008, 0x7e020000,
		0x10000000, 0x11, 0xffffffff, 0xfffffffe, 1<<32 | 5, 1<<32 | 38, 1<<32 | 41, 1<<32 | 42,
		1<<32 | 43, 1<<33 | 5, 1<<40 | 32, 1 << 63, ^uint64(0),
	}
	var numbers []uint32
	for n := range uint32(600) {
		numbers = append(numbers, n, 0x40000000+n)
	}
	numbers = append(numbers, 0xf0001, 0xf0002, 0x3fffffff, 0x7fffffff, 0x80000000, 0xfffffffe)
	compared, differences := 0, map[string]string{}
	for arch, name := range map[uint32]string{
		unix.AUDIT_ARCH_X86_64: "x86-64", unix.AUDIT_ARCH_I386: "x86", unix.AUDIT_ARCH_AARCH64: "aarch64",
	} {
		wide := arch == unix.AUDIT_ARCH_X86_64
		for _, number := range numbers {
			plain := number
			if wide {
				plain &^= 0x40000000 // the x32 ABI
			}
			for _, first := range values {
				for _, second := range []uint64{0, 32, 41, 42, 0x7e020000, 1<<32 | 32} {
					if !wide && (first>>32 != 0 || second>>32 != 0) {
						continue // 32-bit programs cannot
					}
					our := evaluate(t, ours, number, arch, first, second)
					their := evaluate(t, theirs, number, arch, first, second)
					compared++
					if our != their && !expected(plain, wide, first, second, our, their, newer) {
						differences[fmt.Sprintf("%s %d (%#x): %#x, libseccomp %#x", name, plain, number, our, their)] =
							fmt.Sprintf("(%#x, %#x)", first, second)
					}
				}
			}
		}
	}
	for what, arguments := range differences {
		t.Errorf("%s, for example with %s", what, arguments)
	}
	t.Logf("%d calls compared", compared)
}

// expected lists the differences that are meant. In none of them is ours the more permissive one,
// but for calls that the profile permits and that libseccomp does not have yet.
func expected(number uint32, wide bool, first, second uint64, our, their uint32, newer map[uint32]bool) bool {
	const eperm, enosys = 0x00050000 | uint32(unix.EPERM), 0x00050000 | uint32(unix.ENOSYS)
	switch {
	case our == enosys && their == eperm:
		return unknown(number) // newer than the profile: programs fall back to older calls
	case our == 0x7fff0000 && their == eperm:
		return unknown(number) && newer[number]
	case wide && (number == unix.SYS_SOCKET || number == unix.SYS_SOCKETPAIR) && (first>>32 != 0 || second>>32 != 0):
		return true // the kernel takes the lower halves of these arguments; TestSocketFilter says what ours does
	case !wide && number == socketCall386:
		return our != 0x7fff0000 // libseccomp permits what it cannot see
	}
	return false
}

const socketCall386 = 102

// TestSocketFilter: the filter looks at what the kernel reads of the arguments of socket(2) alone.
func TestSocketFilter(t *testing.T) {
	vm := filterOf(t, engine.Security{}, true)
	for _, test := range []struct {
		number, arch uint32
		family, kind uint64
		want         unix.Errno
	}{
		{unix.SYS_SOCKET, unix.AUDIT_ARCH_X86_64, unix.AF_UNIX, 1, 0},
		{unix.SYS_SOCKET, unix.AUDIT_ARCH_X86_64, 1<<32 | unix.AF_UNIX, 1<<32 | 1, 0},
		{unix.SYS_SOCKET, unix.AUDIT_ARCH_X86_64, unix.AF_ALG, 5, unix.EAFNOSUPPORT},
		{unix.SYS_SOCKET, unix.AUDIT_ARCH_X86_64, 1<<32 | unix.AF_ALG, 5, unix.EAFNOSUPPORT},
		{unix.SYS_SOCKET, unix.AUDIT_ARCH_X86_64, unix.AF_PACKET, 3, unix.EAFNOSUPPORT},
		{unix.SYS_SOCKET | 0x40000000, unix.AUDIT_ARCH_X86_64, unix.AF_VSOCK, 1, unix.EAFNOSUPPORT},
		{unix.SYS_SOCKETPAIR, unix.AUDIT_ARCH_X86_64, unix.AF_UNIX, 1, 0},
		{unix.SYS_SOCKETPAIR, unix.AUDIT_ARCH_X86_64, unix.AF_TIPC, 1, unix.EPERM},
		{359, unix.AUDIT_ARCH_I386, unix.AF_UNIX, 1, 0},
		{359, unix.AUDIT_ARCH_I386, unix.AF_ALG, 5, unix.EAFNOSUPPORT},
		{socketCall386, unix.AUDIT_ARCH_I386, 1, 0, unix.ENOSYS},
		{socketCall386, unix.AUDIT_ARCH_I386, 8, 0, unix.ENOSYS},
	} {
		want := uint32(0x7fff0000)
		if test.want != 0 {
			want = 0x00050000 | uint32(test.want)
		}
		if got := evaluate(t, vm, test.number, test.arch, test.family, test.kind); got != want {
			t.Errorf("architecture %#x, call %d(%#x, %#x): %#x, want %#x", test.arch, test.number, test.family, test.kind, got, want)
		}
	}
}

// allowed returns the numbers of the calls that the profile permits on x86-64.
func allowed(t *testing.T, security engine.Security) map[uint32]bool {
	t.Helper()
	if security.SeccompProfile != "" {
		return nil
	}
	var names []string
	for _, entry := range seccomp.DefaultProfile().Syscalls {
		if entry.Action == specs.ActAllow && entry.Includes == nil && entry.Excludes == nil {
			names = append(names, entry.Names...)
		}
		if entry.Includes != nil && slices.Contains(entry.Includes.Caps, "CAP_SYS_ADMIN") &&
			slices.Contains(security.AddCapabilities, "SYS_ADMIN") {
			names = append(names, entry.Names...)
		}
	}
	table, err := os.ReadFile("../seccomp/syscalls.txt")
	if err != nil {
		t.Fatal(err)
	}
	numbers := map[uint32]bool{}
	for line := range strings.Lines(string(table)) {
		var name string
		var number uint32
		if n, _ := fmt.Sscan(line, &name, &number); n == 2 && slices.Contains(names, name) {
			numbers[number] = true
		}
	}
	return numbers
}

func evaluate(t *testing.T, vm *bpf.VM, number, arch uint32, first, second uint64) uint32 {
	data := make([]byte, 64)
	word := func(at int, value uint32) {
		data[at], data[at+1], data[at+2], data[at+3] = byte(value>>24), byte(value>>16), byte(value>>8), byte(value)
	}
	word(0, number)
	word(4, arch)
	for i, argument := range []uint64{first, second} {
		word(16+8*i, uint32(argument)) // the host's order of words, the machine's order of bytes
		word(20+8*i, uint32(argument>>32))
	}
	action, err := vm.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(action)
}

// filterOf starts a container under crun, and reads its filter from the kernel.
func filterOf(t *testing.T, security engine.Security, compiled bool) *bpf.VM {
	t.Helper()
	b := newBox(t, runtimeOf(t, "crun"), engine.ContainerSpec{Security: security})
	b.plainSeccomp = !compiled
	b.wait(t)
	filter, err := readFilter(b.process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	instructions := make([]bpf.Instruction, len(filter))
	for i, f := range filter {
		instructions[i] = bpf.RawInstruction{Op: f.Code, Jt: f.Jt, Jf: f.Jf, K: f.K}.Disassemble()
	}
	vm, err := bpf.NewVM(instructions)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("compiled by us %t: %d instructions", compiled, len(filter))
	return vm
}

// readFilter reads the one filter of a process.
func readFilter(pid int) ([]unix.SockFilter, error) {
	const getFilter = 0x420c // PTRACE_SECCOMP_GET_FILTER
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.PtraceAttach(pid); err != nil {
		return nil, fmt.Errorf("attach: %w", err)
	}
	defer func() { _ = unix.PtraceDetach(pid) }()
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, unix.WALL, nil); err != nil {
		return nil, fmt.Errorf("wait: %w", err)
	}
	get := func(index int, buffer unsafe.Pointer) (int, error) {
		n, _, errno := unix.Syscall6(unix.SYS_PTRACE, getFilter, uintptr(pid), uintptr(index), uintptr(buffer), 0, 0)
		if errno != 0 {
			return 0, fmt.Errorf("PTRACE_SECCOMP_GET_FILTER: %w", errno)
		}
		return int(n), nil
	}
	length, err := get(0, nil)
	if err != nil {
		return nil, err
	}
	if _, err := get(1, nil); !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("there is a second filter: %v", err)
	}
	filter := make([]unix.SockFilter, length)
	_, err = get(0, unsafe.Pointer(&filter[0]))
	return filter, err
}

// withoutProgram takes the compiled filter out of a config.json: the runtime compiles the profile.
func withoutProgram(directory string) error {
	name := filepath.Join(directory, "config.json")
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	var spec specs.Spec
	if err := json.Unmarshal(text, &spec); err != nil {
		return err
	}
	if len(spec.Annotations) != 1 || spec.Linux.Seccomp == nil {
		return fmt.Errorf("annotations %v, profile %t", spec.Annotations, spec.Linux.Seccomp != nil)
	}
	spec.Annotations = nil
	if text, err = json.Marshal(spec); err != nil {
		return err
	}
	return os.WriteFile(name, text, 0o600)
}

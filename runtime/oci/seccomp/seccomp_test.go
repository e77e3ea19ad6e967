package seccomp

import (
	"errors"
	"strings"
	"testing"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// What a whole filter does is compared with libseccomp's in package bundle, on the machine's own
// architecture. Here is what that cannot show.

// profile permits three calls, one on a condition.
func profile(architectures ...specs.Arch) *specs.LinuxSeccomp {
	return &specs.LinuxSeccomp{
		DefaultAction: specs.ActErrno, Architectures: architectures,
		Syscalls: []specs.LinuxSyscall{
			{Names: []string{"read", "clone3", "set_tls"}, Action: specs.ActAllow},
			{Names: []string{"socket"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{
				{Index: 0, Value: 38, Op: specs.OpLessThan},
			}},
		},
	}
}

func evaluate(t *testing.T, filter []unix.SockFilter, number, arch uint32, first uint64) uint32 {
	t.Helper()
	instructions := make([]bpf.Instruction, len(filter))
	for i, f := range filter {
		instructions[i] = bpf.RawInstruction{Op: f.Code, Jt: f.Jt, Jf: f.Jf, K: f.K}.Disassemble()
	}
	vm, err := bpf.NewVM(instructions)
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 64) // struct seccomp_data, with big-endian words for this interpreter
	for at, value := range map[int]uint32{0: number, 4: arch, 16: uint32(first), 20: uint32(first >> 32)} {
		data[at], data[at+1], data[at+2], data[at+3] = byte(value>>24), byte(value>>16), byte(value>>8), byte(value)
	}
	action, err := vm.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(action)
}

func TestArchitectures(t *testing.T) {
	const eperm, enosys = retErrno | uint32(unix.EPERM), retErrno | uint32(unix.ENOSYS)
	for _, test := range []struct {
		machine      string
		named        []specs.Arch
		arch, number uint32
		first        uint64
		want         uint32
	}{
		{"arm64", nil, unix.AUDIT_ARCH_AARCH64, 63, 0, retAllow},        // read
		{"arm64", nil, unix.AUDIT_ARCH_AARCH64, 3, 0, eperm},            // not read
		{"arm64", nil, unix.AUDIT_ARCH_AARCH64, 198, 10, retAllow},      // socket
		{"arm64", nil, unix.AUDIT_ARCH_AARCH64, 198, 38, eperm},         // AF_ALG
		{"arm64", nil, unix.AUDIT_ARCH_AARCH64, 198, 1<<32 | 38, eperm}, // the kernel's AF_ALG
		{"arm64", nil, unix.AUDIT_ARCH_AARCH64, 435, 0, retAllow},       // clone3
		{"arm64", nil, unix.AUDIT_ARCH_AARCH64, 436, 0, enosys},         // newer than the profile
		{"arm64", nil, unix.AUDIT_ARCH_ARM, 3, 0, retKillThread},        // not named
		{"arm64", []specs.Arch{specs.ArchARM}, unix.AUDIT_ARCH_ARM, 3, 0, retAllow},
		{"arm64", []specs.Arch{specs.ArchARM}, unix.AUDIT_ARCH_ARM, 0xf0005, 0, retAllow}, // set_tls
		{"arm64", []specs.Arch{specs.ArchARM}, unix.AUDIT_ARCH_ARM, 0xf0002, 0, enosys},   // cacheflush
		{"arm64", []specs.Arch{specs.ArchARM}, unix.AUDIT_ARCH_AARCH64, 63, 0, retAllow},  // the machine's own
		{"arm64", []specs.Arch{specs.ArchARM}, unix.AUDIT_ARCH_X86_64, 0, 0, retKillThread},
		{"amd64", nil, unix.AUDIT_ARCH_X86_64, 0, 0, retAllow},
		{"amd64", nil, unix.AUDIT_ARCH_X86_64, 41, 1<<32 | 38, eperm},
		{"amd64", nil, unix.AUDIT_ARCH_X86_64, x32Bit, 0, retKillThread},
		{"amd64", nil, unix.AUDIT_ARCH_X86_64, 0xffffffff, 0, eperm},
		{"amd64", nil, unix.AUDIT_ARCH_I386, 3, 0, retKillThread},
		{"amd64", []specs.Arch{specs.ArchX86}, unix.AUDIT_ARCH_I386, 3, 0, retAllow},
		{"amd64", []specs.Arch{specs.ArchX86}, unix.AUDIT_ARCH_I386, 102, 1, eperm}, // socketcall hides the family
		{"amd64", []specs.Arch{specs.ArchX32}, unix.AUDIT_ARCH_X86_64, x32Bit, 0, retAllow},
		{"amd64", []specs.Arch{specs.ArchX32}, unix.AUDIT_ARCH_X86_64, x32Bit + 1, 0, eperm},
	} {
		filter, err := compile(profile(test.named...), test.machine)
		if err != nil {
			t.Fatal(err)
		}
		if got := evaluate(t, filter, test.number, test.arch, test.first); got != test.want {
			t.Errorf("%s with %v: architecture %#x, call %d(%#x): %#x, want %#x",
				test.machine, test.named, test.arch, test.number, test.first, got, test.want)
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	errno := uint(70000)
	for name, test := range map[string]struct {
		change func(*specs.LinuxSeccomp)
		want   string
	}{
		"action":       {func(p *specs.LinuxSeccomp) { p.DefaultAction = "ALLOW" }, `action "ALLOW" is unknown`},
		"call's":       {func(p *specs.LinuxSeccomp) { p.Syscalls[0].Action = "X" }, "read, clone3"},
		"errno":        {func(p *specs.LinuxSeccomp) { p.DefaultErrnoRet = &errno }, "errno 70000"},
		"argument":     {func(p *specs.LinuxSeccomp) { p.Syscalls[1].Args[0].Index = 6 }, "argument 6"},
		"operator":     {func(p *specs.LinuxSeccomp) { p.Syscalls[1].Args[0].Op = "==" }, `operator "=="`},
		"architecture": {func(p *specs.LinuxSeccomp) { p.Architectures = []specs.Arch{"amd64"} }, `architecture "amd64"`},
	} {
		p := profile()
		test.change(p)
		if _, err := Compile(p); err == nil || errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want an error with %s", name, err, test.want)
		}
	}
	for name, change := range map[string]func(*specs.LinuxSeccomp){
		"notification": func(p *specs.LinuxSeccomp) { p.Syscalls[0].Action = specs.ActNotify },
		"listener":     func(p *specs.LinuxSeccomp) { p.ListenerPath = "/run/x.sock" },
	} {
		p := profile()
		change(p)
		if _, err := Compile(p); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v, want ErrUnsupported", name, err)
		}
	}
	if _, err := compile(profile(), "s390x"); !errors.Is(err, ErrUnsupported) {
		t.Errorf("another machine: %v, want ErrUnsupported", err)
	}
	large := profile()
	for i := range uint64(5000) {
		large.Syscalls = append(large.Syscalls, specs.LinuxSyscall{
			Names: []string{"ioctl"}, Action: specs.ActAllow,
			Args: []specs.LinuxSeccompArg{{Index: 1, Value: i, Op: specs.OpEqualTo}},
		})
	}
	if _, err := Compile(large); err == nil || !strings.Contains(err.Error(), "4096") {
		t.Errorf("a large profile: %v", err)
	}
}

// TestNames: every name of Docker's profile is known, on some architecture, but for these.
func TestNames(t *testing.T) {
	missing := map[string]bool{
		// Of architectures that this package does not compile for.
		"riscv_flush_icache": true, "riscv_hwprobe": true, "s390_pci_mmio_read": true,
		"s390_pci_mmio_write": true, "s390_runtime_instr": true, "swapcontext": true, "sync_file_range2": true,
		// Calls of C libraries, which on 32-bit x86 go through socketcall.
		"accept": true, "send": true, "recv": true,
	}
	known := map[string]bool{}
	for _, machine := range families {
		for _, audited := range machine {
			for _, abi := range audited.abis {
				table, err := abi.table()
				if err != nil {
					t.Fatal(err)
				}
				for name := range table {
					known[name] = true
				}
			}
		}
	}
	for _, entry := range seccomp.DefaultProfile().Syscalls {
		for _, name := range entry.Names {
			if !known[name] && !missing[name] {
				t.Errorf("%s is unknown", name)
			}
		}
	}
}

// TestTable looks at some numbers; that syscalls.txt is what go generate makes, gen checks.
func TestTable(t *testing.T) {
	table, err := families["amd64"][0].abis[0].table()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]uint32{
		"read": 0, "clone3": 435, "socket": 41, "uretprobe": 335, "rt_sigaction": 13, "listns": 470,
	} {
		if table[name] != want {
			t.Errorf("%s is %d, want %d", name, table[name], want)
		}
	}
	x32, err := families["amd64"][0].abis[1].table()
	if err != nil {
		t.Fatal(err)
	}
	if x32["rt_sigaction"] != x32Bit+512 || x32["pwritev2"] != x32Bit+547 || x32["read"] != x32Bit {
		t.Errorf("x32: %#x, %#x, %#x", x32["rt_sigaction"], x32["pwritev2"], x32["read"])
	}
}

// Package seccomp compiles seccomp profiles of the OCI runtime specification to the programs that
// the kernel runs, in pure Go. A runtime that is given a program need not compile the profile for
// every container, which costs it some 15 ms.
//
// It follows libseccomp where the two could differ: a rule without conditions supersedes those with
// conditions, architectures that the profile does not name are killed, and names that no kernel of
// an architecture has are left out. Two differences are deliberate: rules with overlapping
// conditions and different actions are tried in the profile's order, and conditions on the
// arguments of socket(2) and socketpair(2) compare the 32 bits that the kernel reads.
package seccomp

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// ErrUnsupported is wrapped by errors about profiles that are correct and that this package does
// not compile: on other architectures, or with notifications to another process. The runtime may.
var ErrUnsupported = errors.New("not supported by the compiler of seccomp profiles")

// Actions of a filter, as the kernel defines them.
const (
	retKillThread  = 0x00000000
	retKillProcess = 0x80000000
	retTrap        = 0x00030000
	retErrno       = 0x00050000
	retTrace       = 0x7ff00000
	retLog         = 0x7ffc0000
	retAllow       = 0x7fff0000
	retData        = 0x0000ffff // the part of errno
)

// x32Bit is set in the numbers of system calls of the x32 ABI, which has the architecture of
// x86-64.
const x32Bit = 0x40000000

// Compile returns the profile as a program for the machine's architecture and those that it also
// runs: an array of struct sock_filter in the machine's byte order.
func Compile(profile *specs.LinuxSeccomp) ([]byte, error) {
	filters, err := compile(profile, runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	code := make([]byte, 0, 8*len(filters))
	for _, f := range filters {
		code = binary.NativeEndian.AppendUint16(code, f.Code)
		code = append(code, f.Jt, f.Jf)
		code = binary.NativeEndian.AppendUint32(code, f.K)
	}
	return code, nil
}

func compile(profile *specs.LinuxSeccomp, goarch string) ([]unix.SockFilter, error) {
	family, ok := families[goarch]
	if !ok {
		return nil, fmt.Errorf("%w: architecture %s", ErrUnsupported, goarch)
	}
	fallback, err := action(profile.DefaultAction, profile.DefaultErrnoRet)
	if err != nil {
		return nil, fmt.Errorf("default action: %w", err)
	}
	if profile.ListenerPath != "" {
		return nil, fmt.Errorf("%w: listenerPath", ErrUnsupported)
	}
	for _, arch := range profile.Architectures {
		if !strings.HasPrefix(string(arch), "SCMP_ARCH_") {
			return nil, fmt.Errorf("architecture %q is unknown", arch)
		}
	}
	p := newProgram()
	// From the last instruction to the first: the architectures after the one that is tried first.
	next := p.ret(retKillThread)
	for _, tree := range slices.Backward(family) {
		var start label
		for i, abi := range slices.Backward(tree.abis) {
			// The first ABI of the family is the machine's own, which every filter has.
			named := abi.name == family[0].abis[0].name ||
				slices.Contains(profile.Architectures, abi.name)
			var body label
			if named {
				calls, err := resolve(profile, abi, fallback)
				if err != nil {
					return nil, err
				}
				body = p.decide(calls)
			} else {
				body = p.ret(retKillThread)
			}
			if i == len(tree.abis)-1 {
				start = body
				continue
			}
			// The x32 ABI differs from x86-64 by the number. The number -1 is a tracer's, which
			// skips the system call: it is x86-64's.
			start = p.jump(unix.BPF_JGE, x32Bit, start, body)
			start = p.jump(unix.BPF_JEQ, 0xffffffff, p.ret(fallback), start)
		}
		number := p.loadBefore(start, offsetNumber)
		next = p.jump(unix.BPF_JEQ, tree.audit, number, next)
	}
	p.loadBefore(next, offsetArch)
	return p.finish()
}

// call is what a filter does with one system call: the first rule that holds, else the action.
type call struct {
	number uint32
	rules  []rule
	action uint32
}

// rule is an action for when all conditions hold.
type rule struct {
	conditions []specs.LinuxSeccompArg
	action     uint32
	bits       int // how many of an argument's bits are compared: 32 or 64
}

// calls are the rules of one ABI.
type calls struct {
	list     []call // by number
	fallback uint32 // for numbers that are not in the list
	beyond   uint32 // the first number that is newer than the profile
	newer    uint32 // the action for it
}

// resolve returns what the profile says about the system calls of an ABI.
func resolve(profile *specs.LinuxSeccomp, abi abi, fallback uint32) (calls, error) {
	numbers, err := abi.table()
	if err != nil {
		return calls{}, err
	}
	r := resolver{
		abi: abi, numbers: numbers, fallback: fallback, highest: abi.base,
		known: map[uint32]*call{}, final: map[uint32]bool{},
	}
	for _, entry := range profile.Syscalls {
		if err := r.add(entry); err != nil {
			return calls{}, fmt.Errorf("system calls %s: %w", strings.Join(entry.Names, ", "), err)
		}
	}
	return r.calls(), nil
}

// resolver gathers the rules of a profile for one ABI.
type resolver struct {
	abi      abi
	numbers  map[string]uint32
	fallback uint32
	known    map[uint32]*call
	final    map[uint32]bool // those with a rule without conditions
	highest  uint32          // the last number that the profile names, private ones aside
}

// add adds the rules of one entry of the profile.
func (r *resolver) add(entry specs.LinuxSyscall) error {
	do, err := action(entry.Action, entry.ErrnoRet)
	if err != nil {
		return err
	}
	alternatives, err := alternatives(entry.Args)
	if err != nil {
		return err
	}
	for _, name := range entry.Names {
		if number, ok := r.numbers[name]; ok && number < r.abi.base+privateCalls {
			r.highest = max(r.highest, number)
		}
		if do == r.fallback {
			continue // as runtimes do: it would supersede nothing
		}
		for _, target := range r.targets(name, alternatives, do) {
			r.apply(target, do, r.abi.compared(name))
		}
	}
	return nil
}

// targets are the system calls by which the named one is made.
func (r *resolver) targets(name string, alternatives [][]specs.LinuxSeccompArg, do uint32) []target {
	var targets []target
	if number, ok := r.numbers[name]; ok {
		targets = append(targets, target{number: number, alternatives: alternatives})
	}
	if multiplexed, ok := r.abi.multiplexed(name, alternatives, do); ok {
		targets = append(targets, multiplexed)
	}
	return targets
}

// apply adds the rules of a target. A rule without conditions supersedes all others.
func (r *resolver) apply(target target, do uint32, bits int) {
	if r.final[target.number] {
		return
	}
	found, ok := r.known[target.number]
	if !ok {
		found = &call{number: target.number, action: r.fallback}
		r.known[target.number] = found
	}
	if len(target.alternatives) == 0 {
		r.final[target.number] = true
		found.rules, found.action = nil, do
		return
	}
	for _, conditions := range target.alternatives {
		found.rules = append(found.rules, rule{conditions: conditions, action: do, bits: bits})
	}
}

// calls returns the rules that were added, by number.
func (r *resolver) calls() calls {
	result := calls{fallback: r.fallback, beyond: r.highest + 1, newer: r.fallback}
	if r.fallback&^retData == retErrno && len(r.known) > 0 {
		// A program that tries a system call which is newer than the profile must see the error
		// with which it falls back to an older one. runc does the same.
		result.newer = retErrno | uint32(unix.ENOSYS)
	}
	for _, found := range r.known {
		result.list = append(result.list, *found)
	}
	slices.SortFunc(result.list, func(a, b call) int { return cmp.Compare(a.number, b.number) })
	return result
}

// target is a system call to which an entry of a profile applies: if any of the alternatives holds,
// or always, when there are none.
type target struct {
	number       uint32
	alternatives [][]specs.LinuxSeccompArg
}

// alternatives returns the conditions of an entry. As in runtimes, all must hold, unless several
// are about the same argument: then one is enough.
func alternatives(args []specs.LinuxSeccompArg) ([][]specs.LinuxSeccompArg, error) {
	if len(args) == 0 {
		return nil, nil
	}
	seen := map[uint]int{}
	for _, arg := range args {
		if arg.Index > 5 {
			return nil, fmt.Errorf("argument %d: a system call has the arguments 0 to 5", arg.Index)
		}
		if !slices.Contains(operators, arg.Op) {
			return nil, fmt.Errorf("argument %d: operator %q is unknown", arg.Index, arg.Op)
		}
		seen[arg.Index]++
	}
	if len(seen) == len(args) {
		return [][]specs.LinuxSeccompArg{args}, nil
	}
	var each [][]specs.LinuxSeccompArg
	for _, arg := range args {
		each = append(each, []specs.LinuxSeccompArg{arg})
	}
	return each, nil
}

func action(name specs.LinuxSeccompAction, errno *uint) (uint32, error) {
	data := uint32(unix.EPERM)
	if errno != nil {
		if *errno > retData {
			return 0, fmt.Errorf("errno %d is larger than %d", *errno, retData)
		}
		data = uint32(*errno)
	}
	switch name {
	case specs.ActKill, specs.ActKillThread:
		return retKillThread, nil
	case specs.ActKillProcess:
		return retKillProcess, nil
	case specs.ActTrap:
		return retTrap, nil
	case specs.ActErrno:
		return retErrno | data, nil
	case specs.ActTrace:
		return retTrace | data, nil
	case specs.ActLog:
		return retLog, nil
	case specs.ActAllow:
		return retAllow, nil
	case specs.ActNotify:
		return 0, fmt.Errorf("%w: action %s", ErrUnsupported, name)
	}
	return 0, fmt.Errorf("action %q is unknown", name)
}

package cgroup

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// anyNumber is a device number that stands for all.
const anyNumber = -1

// device is a rule: what a container may do to devices. What no rule permits is denied.
type device struct {
	kind         byte // 'c' or 'b'
	major, minor int
	access       string // of r, w and m, which is mknod(2)
}

// permitted is what Docker permits: to make any node, and to open the harmless ones.
var permitted = []device{
	{'c', anyNumber, anyNumber, "m"},
	{'b', anyNumber, anyNumber, "m"},
	{'c', 1, 3, "rwm"},           // /dev/null
	{'c', 1, 5, "rwm"},           // /dev/zero
	{'c', 1, 7, "rwm"},           // /dev/full
	{'c', 1, 8, "rwm"},           // /dev/random
	{'c', 1, 9, "rwm"},           // /dev/urandom
	{'c', 5, 0, "rwm"},           // /dev/tty
	{'c', 5, 1, "rwm"},           // /dev/console
	{'c', 5, 2, "rwm"},           // /dev/ptmx
	{'c', 136, anyNumber, "rwm"}, // /dev/pts
}

// rules returns those of the list that permit something.
func rules(list []specs.LinuxDeviceCgroup) []device {
	number := func(n *int64) int {
		if n == nil {
			return anyNumber
		}
		return int(*n)
	}
	var found []device
	for _, rule := range list {
		if rule.Allow && (rule.Type == "c" || rule.Type == "b") {
			found = append(found, device{rule.Type[0], number(rule.Major), number(rule.Minor), rule.Access})
		}
	}
	return found
}

// String is the rule as files of version 1 have it.
func (d device) String() string {
	number := func(n int) string {
		if n == anyNumber {
			return "*"
		}
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%c %s:%s %s", d.kind, number(d.major), number(d.minor), d.access)
}

// permitDevices1 denies everything before it permits, unless that was done: a group may be in use.
func permitDevices1(directory string, permitted []device) error {
	rules, err := os.ReadFile(filepath.Join(directory, "devices.list"))
	if err != nil {
		return err
	}
	if strings.HasPrefix(string(rules), "a ") { // everything is permitted
		if err := write(directory, "devices.deny", "a"); err != nil {
			return err
		}
	}
	for _, d := range permitted {
		if err := write(directory, "devices.allow", d.String()); err != nil {
			return err
		}
	}
	return nil
}

// permitDevices2 attaches a program that decides about every access, unless the group has one: what
// it had would stay, and a group holds at most 64.
func permitDevices2(directory string, permitted []device) error {
	group, err := os.Open(directory)
	if err != nil {
		return err
	}
	defer func() { _ = group.Close() }()
	if attached, err := attachedPrograms(group); attached > 0 || err != nil {
		return err
	}
	program, err := loadProgram(deviceProgram(permitted))
	if err != nil {
		return fmt.Errorf("load the program that limits devices: %w", err)
	}
	defer func() { _ = unix.Close(program) }() // the group holds it
	attach := struct{ target, program, kind, flags uint32 }{
		uint32(group.Fd()), uint32(program), unix.BPF_CGROUP_DEVICE, unix.BPF_F_ALLOW_MULTI,
	}
	if _, err := bpf(unix.BPF_PROG_ATTACH, unsafe.Pointer(&attach), unsafe.Sizeof(attach)); err != nil {
		return fmt.Errorf("attach the program that limits devices: %w", err)
	}
	return nil
}

// attachedPrograms counts the programs of the group itself that decide about devices.
func attachedPrograms(group *os.File) (uint32, error) {
	query := struct {
		target, kind, flags, attachFlags uint32
		ids                              uint64
		count, _                         uint32
	}{target: uint32(group.Fd()), kind: unix.BPF_CGROUP_DEVICE}
	if _, err := bpf(unix.BPF_PROG_QUERY, unsafe.Pointer(&query), unsafe.Sizeof(query)); err != nil {
		return 0, fmt.Errorf("list the programs that limit devices: %w", err)
	}
	return query.count, nil
}

// Registers and instructions of eBPF that the program takes.
const (
	r0 = iota
	r1
	r2
	r3
	r4
	r5

	loadWord   = unix.BPF_LDX | unix.BPF_MEM | unix.BPF_W
	and        = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
	shiftRight = unix.BPF_ALU | unix.BPF_RSH | unix.BPF_K
	set32      = unix.BPF_ALU | unix.BPF_MOV | unix.BPF_K
	copy32     = unix.BPF_ALU | unix.BPF_MOV | unix.BPF_X
	unlessSame = unix.BPF_JMP | unix.BPF_JNE | unix.BPF_K
	unlessReg  = unix.BPF_JMP | unix.BPF_JNE | unix.BPF_X
	exit       = unix.BPF_JMP | unix.BPF_EXIT
)

// instruction is struct bpf_insn.
type instruction struct {
	code      uint8
	registers uint8
	offset    int16
	value     int32
}

func op(code, to, from uint8, offset int16, value int32) instruction {
	registers := to | from<<4
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		registers = to<<4 | from // the kernel's bit fields follow the byte order
	}
	return instruction{code, registers, offset, value}
}

// deviceProgram returns a program of the type cgroup_device: 1 permits. Its argument is
// struct bpf_cgroup_dev_ctx: the kind of device in the lower half of the first word, the access in
// the upper one, then major and minor number.
func deviceProgram(rules []device) []instruction {
	program := []instruction{
		op(loadWord, r2, r1, 0, 0), op(and, r2, 0, 0, 0xffff), // kind
		op(loadWord, r3, r1, 0, 0), op(shiftRight, r3, 0, 0, 16), // access
		op(loadWord, r4, r1, 4, 0), // major
		op(loadWord, r5, r1, 8, 0), // minor
	}
	for _, rule := range rules {
		kind, access := int32(unix.BPF_DEVCG_DEV_CHAR), int32(0)
		if rule.kind == 'b' {
			kind = unix.BPF_DEVCG_DEV_BLOCK
		}
		for _, letter := range rule.access {
			access |= map[rune]int32{
				'r': unix.BPF_DEVCG_ACC_READ, 'w': unix.BPF_DEVCG_ACC_WRITE, 'm': unix.BPF_DEVCG_ACC_MKNOD,
			}[letter]
		}
		// Every comparison goes to the next rule, which begins after the two instructions that
		// permit; the distances are filled in when the length is known.
		block := []instruction{
			op(unlessSame, r2, 0, 0, kind),
			op(copy32, r0, r3, 0, 0), op(and, r0, 0, 0, access), op(unlessReg, r0, r3, 0, 0),
		}
		if rule.major != anyNumber {
			block = append(block, op(unlessSame, r4, 0, 0, int32(rule.major)))
		}
		if rule.minor != anyNumber {
			block = append(block, op(unlessSame, r5, 0, 0, int32(rule.minor)))
		}
		block = append(block, op(set32, r0, 0, 0, 1), op(exit, 0, 0, 0, 0))
		for i := range block {
			if block[i].code == unlessSame || block[i].code == unlessReg {
				block[i].offset = int16(len(block) - i - 1)
			}
		}
		program = append(program, block...)
	}
	return append(program, op(set32, r0, 0, 0, 0), op(exit, 0, 0, 0, 0))
}

// loadProgram returns the descriptor of the program.
func loadProgram(program []instruction) (int, error) {
	license := []byte("Apache-2.0\x00")
	var pinner runtime.Pinner // the kernel gets addresses as numbers
	defer pinner.Unpin()
	pinner.Pin(&program[0])
	pinner.Pin(&license[0])
	load := struct {
		kind, length  uint32
		instructions  uint64
		license       uint64
		logLevel, log uint32
		logAddress    uint64
	}{
		kind: unix.BPF_PROG_TYPE_CGROUP_DEVICE, length: uint32(len(program)),
		instructions: uint64(uintptr(unsafe.Pointer(&program[0]))),
		license:      uint64(uintptr(unsafe.Pointer(&license[0]))),
	}
	for attempt := 0; ; attempt++ {
		fd, err := bpf(unix.BPF_PROG_LOAD, unsafe.Pointer(&load), unsafe.Sizeof(load))
		// A signal, such as the Go runtime's, interrupts the verifier.
		if err != unix.EAGAIN || attempt == 30 {
			return fd, err
		}
	}
}

func bpf(command uintptr, attributes unsafe.Pointer, size uintptr) (int, error) {
	fd, _, errno := unix.Syscall(unix.SYS_BPF, command, uintptr(attributes), size)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil // closed on exec: the kernel's default for these
}

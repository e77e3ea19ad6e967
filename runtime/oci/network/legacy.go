package network

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Constants of getsockopt(2) on a raw socket, which reads the tables of iptables-legacy: nftables
// does not list them (include/uapi/linux/netfilter_ipv4/ip_tables.h).
const (
	optionInfo    = 64 // IPT_SO_GET_INFO
	optionEntries = 65 // IPT_SO_GET_ENTRIES

	infoLen       = 84 // struct ipt_getinfo
	underflows    = 56 // offset in it: of the entry with the policy, for each of 5 hooks
	infoSize      = 80 // offset in it: bytes of all entries
	entriesHeader = 40 // struct ipt_get_entries, before the entries

	entryIn     = 16 // offsets in struct ipt_entry: names of the interfaces
	entryOut    = 32
	entryTarget = 88 // offset of the offset of the target
	entryNext   = 90 // offset of the length of the entry
	entryLen    = 112
	targetName  = 2  // offset in struct xt_entry_target, 29 bytes
	verdict     = 32 // offset of the verdict of a standard target: drop is -1, accept -2

	hookForward = 2
)

// legacyDrops returns a message when iptables-legacy drops packets that are forwarded for the
// bridge, with the commands that permit them; else "".
func legacyDrops(bridge string) string {
	// Asking for a table that is not in use would make it.
	names, err := os.ReadFile("/proc/thread-self/net/ip_tables_names")
	if err != nil || !containsLine(string(names), "filter") {
		return ""
	}
	entries, policy, err := legacyEntries("filter")
	if err != nil {
		return fmt.Sprintf("cannot read the rules of iptables-legacy: %v", err)
	}
	if policy >= len(entries) || !entryDrops(entries[policy:]) || legacyPermits(entries, bridge) {
		return ""
	}
	chain := forwardChain
	if bytes.Contains(entries, []byte(dockerChain)) {
		chain = dockerChain
	}
	return fmt.Sprintf("iptables-legacy drops packets to and from sandboxes: "+
		"iptables-legacy -I %[1]s -i %[2]s -j ACCEPT && iptables-legacy -I %[1]s -o %[2]s -j ACCEPT", chain, bridge)
}

func containsLine(text, line string) bool {
	for l := range strings.Lines(text) {
		if strings.TrimSpace(l) == line {
			return true
		}
	}
	return false
}

// legacyEntries returns the entries of a table, and the offset of the one with the policy of
// FORWARD.
func legacyEntries(table string) ([]byte, int, error) {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = unix.Close(socket) }()
	info := make([]byte, infoLen)
	copy(info, table)
	if err := getsockopt(socket, optionInfo, info); err != nil {
		return nil, 0, err
	}
	size := binary.NativeEndian.Uint32(info[infoSize:])
	const most = 64 << 20
	if size > most {
		return nil, 0, fmt.Errorf("%d bytes of rules", size)
	}
	entries := make([]byte, entriesHeader+size)
	copy(entries, table)
	binary.NativeEndian.PutUint32(entries[32:], size)
	if err := getsockopt(socket, optionEntries, entries); err != nil {
		return nil, 0, err
	}
	policy := binary.NativeEndian.Uint32(info[underflows+4*hookForward:])
	return entries[entriesHeader:], int(policy), nil
}

func getsockopt(socket, option int, into []byte) error {
	length := uint32(len(into))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(socket), unix.IPPROTO_IP, uintptr(option),
		uintptr(unsafe.Pointer(&into[0])), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// entryDrops reports whether the first entry is a standard target that drops.
func entryDrops(entry []byte) bool { return entryVerdict(entry) == -1 }

// entryVerdict is the verdict of an entry, 0 when it has another target.
func entryVerdict(entry []byte) int32 {
	if len(entry) < entryLen {
		return 0
	}
	target := int(binary.NativeEndian.Uint16(entry[entryTarget:]))
	if target+verdict+4 > len(entry) || entry[target+targetName] != 0 {
		return 0
	}
	return int32(binary.NativeEndian.Uint32(entry[target+verdict:]))
}

// legacyPermits reports whether entries accept packets from the bridge and packets to it.
func legacyPermits(entries []byte, bridge string) bool {
	const acceptVerdict = -2
	var in, out bool
	for len(entries) >= entryLen {
		next := int(binary.NativeEndian.Uint16(entries[entryNext:]))
		if next < entryLen || next > len(entries) {
			break
		}
		if entryVerdict(entries[:next]) == acceptVerdict {
			in = in || cString(entries[entryIn:entryIn+unix.IFNAMSIZ]) == bridge
			out = out || cString(entries[entryOut:entryOut+unix.IFNAMSIZ]) == bridge
		}
		entries = entries[next:]
	}
	return in && out
}

func cString(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}

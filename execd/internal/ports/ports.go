// Package ports lists the TCP ports of the sandbox on which programs listen. The sandbox decides
// how many sockets and processes there are, so everything that is read has a bound.
package ports

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// What is read and returned at most.
const (
	maxTable     = 1 << 20 // bytes of a table of the kernel; about 7000 sockets
	maxPorts     = 1000
	maxAddresses = 16
	maxProcesses = 4096
	maxLinks     = 1 << 16 // descriptors of all processes together
	maxName      = 15      // bytes of a process's name, TASK_COMM_LEN without its NUL
)

// listening is TCP_LISTEN in the column "st" of proc(5), net/tcp.
const listening = "0A"

// Options configures a [Table].
type Options struct {
	// ProcRoot is where proc(5) is mounted; empty means /proc.
	ProcRoot string
}

// Table reads the tables of the kernel. It keeps nothing, and may be used by several goroutines at
// once.
type Table struct{ proc string }

// New returns a table.
func New(options Options) *Table {
	if options.ProcRoot == "" {
		options.ProcRoot = "/proc"
	}
	return &Table{proc: options.ProcRoot}
}

// Port is a TCP port on which a program listens.
type Port struct {
	Number    int
	Addresses []netip.Addr // without repetitions, in ascending order; at most 16
	PID       int          // a process that has the socket; 0 when none was found
	Program   string       // the name of that process, valid UTF-8

	inodes []uint64
}

// Listening returns at most 1000 ports in ascending order, without those of except, and whether
// there may be more. An error means that the kernel's tables cannot be read.
func (t *Table) Listening(except ...int) (found []Port, truncated bool, err error) {
	byNumber := map[int]*Port{}
	for _, name := range []string{"tcp", "tcp6"} {
		more, err := t.read(filepath.Join(t.proc, "net", name), byNumber)
		switch {
		case name == "tcp6" && errors.Is(err, fs.ErrNotExist): // a kernel without IPv6
		case err != nil:
			return nil, false, fmt.Errorf("read the table of sockets: %w", err)
		}
		truncated = truncated || more
	}
	for _, number := range except {
		delete(byNumber, number)
	}
	t.findProcesses(byNumber)
	for _, port := range byNumber {
		slices.SortFunc(port.Addresses, netip.Addr.Compare)
		found = append(found, *port)
	}
	slices.SortFunc(found, func(a, b Port) int { return a.Number - b.Number })
	if len(found) > maxPorts {
		found, truncated = found[:maxPorts], true
	}
	return found, truncated, nil
}

// read adds the listening sockets of one table.
func (t *Table) read(path string, into map[int]*Port) (truncated bool, err error) {
	file, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer file.Close()
	limited := &io.LimitedReader{R: file, N: maxTable}
	lines := bufio.NewScanner(limited)
	for lines.Scan() {
		address, inode, ok := parse(lines.Text())
		if !ok {
			continue
		}
		number := int(address.Port())
		port := into[number]
		if port == nil {
			port = &Port{Number: number}
			into[number] = port
		}
		if len(port.Addresses) < maxAddresses && !slices.Contains(port.Addresses, address.Addr()) {
			port.Addresses = append(port.Addresses, address.Addr())
		}
		if len(port.inodes) < maxAddresses {
			port.inodes = append(port.inodes, inode)
		}
	}
	return limited.N == 0, lines.Err()
}

// parse returns the local address of a listening socket and its inode; false for every other line.
func parse(line string) (local netip.AddrPort, inode uint64, ok bool) {
	// sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode ...
	fields := strings.Fields(line)
	if len(fields) < 10 || fields[3] != listening {
		return local, 0, false
	}
	address, port, _ := strings.Cut(fields[1], ":")
	raw, err := hex.DecodeString(address)
	number, err2 := strconv.ParseUint(port, 16, 16)
	inode, err3 := strconv.ParseUint(fields[9], 10, 64)
	if err != nil || err2 != nil || err3 != nil || len(raw)%4 != 0 || number == 0 {
		return local, 0, false
	}
	for at := 0; at < len(raw); at += 4 { // the kernel prints words in its own order of bytes
		word := raw[at : at+4]
		binary.NativeEndian.PutUint32(word, binary.BigEndian.Uint32(word))
	}
	addr, ok := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(addr, uint16(number)), inode, ok
}

// findProcesses sets the processes that have the sockets, of those that this process may look at.
func (t *Table) findProcesses(of map[int]*Port) {
	wanted := map[string]*Port{} // by what a descriptor links to
	for _, port := range of {
		for _, inode := range port.inodes {
			wanted[fmt.Sprintf("socket:[%d]", inode)] = port
		}
	}
	names, err := namesIn(t.proc, 2*maxProcesses) // with the other entries of the directory
	if err != nil {
		return
	}
	left := maxLinks
	missing := len(of)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		directory := filepath.Join(t.proc, name, "fd")
		links, err := namesIn(directory, left)
		if err != nil {
			continue // another user's process, or one that has ended
		}
		left -= len(links)
		for _, link := range links {
			target, err := os.Readlink(filepath.Join(directory, link))
			if port := wanted[target]; err == nil && port != nil && port.PID == 0 {
				port.PID, port.Program = pid, t.program(name)
				missing--
			}
		}
		if missing == 0 || left <= 0 {
			return
		}
	}
}

// program returns the name of a process, empty for one that has ended.
func (t *Table) program(pid string) string {
	file, err := os.Open(filepath.Join(t.proc, pid, "comm"))
	if err != nil {
		return ""
	}
	defer file.Close()
	name := make([]byte, maxName)
	n, _ := io.ReadFull(file, name)
	return strings.ToValidUTF8(strings.TrimSuffix(string(name[:n]), "\n"), "\uFFFD")
}

// namesIn returns at most so many names of a directory.
func namesIn(directory string, most int) ([]string, error) {
	opened, err := os.Open(directory)
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	names, err := opened.Readdirnames(max(1, most))
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	return names, err
}

package traffic

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// maxTable bounds what is read of a table of sockets, in bytes; what is in a container decides how
// long that is. It has some 7000 sockets.
const maxTable = 1 << 20

// States of a TCP socket in the column "st" of proc(5), net/tcp.
const (
	established = "01"
	closeWait   = "08"
	listening   = "0A"
)

// Unread reports whether a socket in the network of a process has connections that no program has
// accepted, or data that no program has read. While the processes of a container are frozen, that
// is what has come for them. A table that is too long counts as such a socket. A kernel of the
// container's own shows no sockets. Proc is where proc(5) is mounted.
func Unread(proc string, pid int) (bool, error) {
	for _, name := range []string{"tcp", "tcp6", "udp", "udp6"} {
		unread, err := unreadIn(filepath.Join(proc, strconv.Itoa(pid), "net", name))
		switch {
		case errors.Is(err, fs.ErrNotExist) && strings.HasSuffix(name, "6"): // a kernel without IPv6
		case err != nil:
			return false, fmt.Errorf("read the table of sockets: %w", err)
		case unread:
			return true, nil
		}
	}
	return false, nil
}

// unreadIn looks at one table.
func unreadIn(path string) (bool, error) {
	file, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer file.Close()
	limited := &io.LimitedReader{R: file, N: maxTable}
	lines := bufio.NewScanner(limited)
	lines.Scan() // the names of the columns
	for lines.Scan() {
		if hasUnread(lines.Text(), strings.HasPrefix(filepath.Base(path), "udp")) {
			return true, nil
		}
	}
	return limited.N == 0, lines.Err()
}

// hasUnread looks at one socket.
func hasUnread(line string, datagrams bool) bool {
	// sl local_address rem_address st tx_queue:rx_queue ...
	fields := strings.Fields(line)
	if len(fields) < 5 {
		return false
	}
	_, column, _ := strings.Cut(fields[4], ":")
	queue, err := strconv.ParseUint(column, 16, 64)
	if err != nil {
		return false
	}
	switch {
	case datagrams:
		return queue > 0
	case fields[3] == established, fields[3] == listening: // of the latter: connections
		return queue > 0
	}
	return fields[3] == closeWait && queue > 1 // the end of the connection counts as a byte
}

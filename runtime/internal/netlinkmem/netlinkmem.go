// Package netlinkmem finds out which containers hold memory of the host in netlink(7) sockets.
//
// Messages that wait in these sockets take memory that the kernel counts for no container: answers
// to requests, which a process can have made by the megabyte and never read. No kernel parameter
// and no filter bounds them together, and programs need such sockets to list interfaces. So an
// engine reads what the sockets of a network hold, and ends a container with too much as one
// without memory is ended.
package netlinkmem

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// The bounds of the sockets of one network.
const (
	maxBytes   = 32 << 20
	maxSockets = 4096
)

const (
	// pause is how often the free memory of this host is looked at. The sockets are to be looked at
	// when it has become step less, or after longest: so this costs the same for one container and
	// for a thousand.
	pause   = 200 * time.Millisecond
	step    = 32 << 20
	longest = 10 * time.Second
)

// Watch calls look whenever the sockets are to be looked at, until ctx ends.
func Watch(ctx context.Context, look func()) {
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	var last time.Time
	var most int64 // that was available since then
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			available, err := availableMemory()
			most = max(most, available)
			if err == nil && most-available < step && now.Sub(last) < longest {
				continue
			}
			look()
			last, most = now, available
		}
	}
}

// Held is what the netlink sockets of a network hold.
type Held struct {
	Bytes   int64 // unread
	Sockets int
}

// TooMuch reports whether a container must not hold that.
func (h Held) TooMuch() bool { return h.Bytes > maxBytes || h.Sockets > maxSockets }

// Of returns what the sockets of the network of a process hold. It reads no further than it takes
// to see that this is too much.
func Of(pid int) (Held, error) {
	file, err := os.Open("/proc/" + strconv.Itoa(pid) + "/net/netlink")
	if err != nil {
		return Held{}, err
	}
	defer func() { _ = file.Close() }()
	const received = 4 // sk Eth Pid Groups Rmem ...
	var held Held
	for lines := bufio.NewReader(file); !held.TooMuch(); {
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return held, err
		}
		fields := strings.Fields(line)
		if len(fields) <= received || fields[0] == "sk" {
			continue
		}
		bytes, _ := strconv.ParseInt(fields[received], 10, 64)
		held.Bytes, held.Sockets = held.Bytes+bytes, held.Sockets+1
	}
	return held, nil
}

// availableMemory returns how many bytes the host's processes may have before it swaps or ends
// some.
func availableMemory() (int64, error) {
	content, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	_, rest, found := strings.Cut(string(content), "MemAvailable:")
	fields := strings.Fields(rest)
	if !found || len(fields) == 0 {
		return 0, errors.New("/proc/meminfo has no MemAvailable")
	}
	kib, err := strconv.ParseInt(fields[0], 10, 64)
	return kib << 10, err
}

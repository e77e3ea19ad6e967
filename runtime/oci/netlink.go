package oci

import (
	"bufio"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"sandbox.internal/runtime/engine"
)

// What waits in netlink(7) sockets is memory that the kernel counts for no container: answers to requests, which a process can have made by the
// megabyte and never read. No kernel parameter and no filter bounds them together, and programs need such sockets to list interfaces. So what the
// sockets of a network hold is read, and a container with more than netlinkBytes is ended as one without memory is.
const (
	netlinkBytes   = 32 << 20
	netlinkSockets = 4096
	// netlinkPause is how often the free memory of this host is looked at. The sockets are listed when it has become netlinkStep less, or after
	// netlinkMost: so this costs the same for one container and for a thousand.
	netlinkPause = 200 * time.Millisecond
	netlinkStep  = 32 << 20
	netlinkMost  = 10 * time.Second
)

// boundNetlink ends containers whose netlink sockets hold too much, until the Engine is closed.
func (e *Engine) boundNetlink() {
	ticker := time.NewTicker(netlinkPause)
	defer ticker.Stop()
	var last time.Time
	var most int64 // that was available since then
	for {
		select {
		case <-e.closing.Done():
			return
		case now := <-ticker.C:
			available, err := availableMemory()
			most = max(most, available)
			if err == nil && most-available < netlinkStep && now.Sub(last) < netlinkMost {
				continue
			}
			e.endHolders()
			last, most = now, available
		}
	}
}

// endHolders kills every container whose netlink sockets hold too much. Of those that share a network it is the one that has joined.
func (e *Engine) endHolders() {
	for _, c := range e.networkUsers() {
		bytes, sockets, err := netlinkHeld("/proc/" + strconv.Itoa(c.pid) + "/net/netlink")
		if err != nil || bytes <= netlinkBytes && sockets <= netlinkSockets {
			continue // with an error it has ended
		}
		e.mu.Lock()
		c.container.hoarded = true
		e.mu.Unlock()
		e.log.Warn().Str("container", c.container.name).Int64("bytes", bytes).Int("sockets", sockets).
			Msg("the netlink sockets of the container hold memory of the host that no limit counts: it is ended")
		if err := e.kill(c.container); err != nil {
			e.log.Error().Err(err).Str("container", c.container.name).Msg("the container cannot be ended")
		}
	}
}

// networkUser is a container and the first of its processes.
type networkUser struct {
	container *container
	pid       int
}

// networkUsers returns a container for each network that is not the host's.
func (e *Engine) networkUsers() []networkUser {
	e.mu.Lock()
	defer e.mu.Unlock()
	joined := map[string]bool{} // by id and name
	for _, c := range e.byID {
		if c.status() == engine.StatusRunning {
			joined[c.record.Spec.Join] = true
		}
	}
	var found []networkUser
	for _, c := range e.byID {
		if c.status() != engine.StatusRunning || c.record.Spec.Network == engine.NetworkHost || joined[c.id] || joined[c.name] {
			continue
		}
		found = append(found, networkUser{c, c.record.Run.Process.PID})
	}
	return found
}

// netlinkHeld returns how many bytes wait in the netlink sockets of a network, and how many sockets there are. It reads no further than it takes to
// see that these are too many.
func netlinkHeld(path string) (bytes int64, sockets int, err error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = file.Close() }()
	const received = 4 // sk Eth Pid Groups Rmem ...
	lines := bufio.NewReader(file)
	for bytes <= netlinkBytes && sockets <= netlinkSockets {
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return bytes, sockets, nil
		}
		if err != nil {
			return bytes, sockets, err
		}
		fields := strings.Fields(line)
		if len(fields) <= received || fields[0] == "sk" {
			continue
		}
		held, _ := strconv.ParseInt(fields[received], 10, 64)
		bytes, sockets = bytes+held, sockets+1
	}
	return bytes, sockets, nil
}

// availableMemory returns how many bytes the host's processes may have before it swaps or ends some.
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

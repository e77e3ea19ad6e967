package network

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// addresses gives the containers' addresses, each again only some time after it was let go.
//
// The journal has a line for each address that is used or let go, so that the time is kept when the
// process is killed: "used ADDRESS SECONDS" and "free ADDRESS SECONDS", the time since 1970. It is
// rewritten when it has grown, with where the search goes on in "next ADDRESS SECONDS": the first
// addresses would be given most often otherwise.
type addresses struct {
	prefix     netip.Prefix
	first      netip.Addr // the least that is given
	last       netip.Addr
	quarantine time.Duration
	path       string

	mu    sync.Mutex
	next  netip.Addr // where the search begins
	taken map[netip.Addr]bool
	used  map[netip.Addr]bool      // those of taken that a container has
	freed map[netip.Addr]time.Time // since when those that may not be given yet are free
	file  *os.File
	lines int // in the journal
}

// maxJournal is how many lines beyond those needed the journal may have.
const maxJournal = 4096

// openAddresses reads the journal. An address that a container had when an earlier process ended,
// and that is not in use, counts as let go now.
func openAddresses(o Options, prefix netip.Prefix, inUse []Attachment,
	now time.Time) (*addresses, error) {
	a := &addresses{
		prefix: prefix, first: prefix.Addr().Next().Next(), last: broadcast(prefix).Prev(),
		quarantine: o.Quarantine, path: filepath.Join(o.Directory, "addresses"),
		taken: map[netip.Addr]bool{}, used: map[netip.Addr]bool{}, freed: map[netip.Addr]time.Time{},
	}
	a.next = a.first
	content, err := os.ReadFile(a.path)
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	a.parse(content, now)
	for _, attachment := range inUse {
		a.taken[attachment.Address], a.used[attachment.Address] = true, true
		delete(a.freed, attachment.Address)
	}
	err = a.compact(now)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) { // the journal is as it was
		a.file, err = os.OpenFile(a.path, os.O_WRONLY|os.O_APPEND, 0)
	}
	return a, err
}

// parse reads a journal. What is no line of ours is passed over: a line may have been cut off by
// the end of a process.
func (a *addresses) parse(content []byte, now time.Time) {
	for lines := bufio.NewScanner(bytes.NewReader(content)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) != 3 {
			continue
		}
		address, err := netip.ParseAddr(fields[1])
		seconds, notNumber := strconv.ParseInt(fields[2], 10, 64)
		if err != nil || notNumber != nil || !a.prefix.Contains(address) {
			continue
		}
		at := time.Unix(seconds, 0).Add(time.Second) // the fraction that was cut off
		if fields[0] == "next" {
			a.next = address
			continue
		}
		if fields[0] == "used" {
			a.next = address
			a.advance()
		}
		if fields[0] == "used" || at.After(now) {
			at = now // it was in use until a moment before now, or the clock was set back
		}
		a.freed[address] = at
	}
	if a.next.Less(a.first) || a.next.Compare(a.last) > 0 {
		a.next = a.first
	}
}

// advance moves the search on, after the last address to the first.
func (a *addresses) advance() {
	if a.next = a.next.Next(); a.next.Compare(a.last) > 0 || a.next.Less(a.first) {
		a.next = a.first
	}
}

// compact replaces the journal by the lines that matter.
func (a *addresses) compact(now time.Time) error {
	var b bytes.Buffer
	a.lines = 0
	line := func(what string, address netip.Addr, at time.Time) {
		fmt.Fprintf(&b, "%s %v %d\n", what, address, at.Unix())
		a.lines++
	}
	for address, at := range a.freed {
		if now.Sub(at) >= a.quarantine {
			delete(a.freed, address)
			continue
		}
		line("free", address, at)
	}
	for address := range a.used {
		line("used", address, now)
	}
	line("next", a.next, now)
	temporary := a.path + ".new"
	if err := os.WriteFile(temporary, b.Bytes(), 0o600); err != nil {
		return err
	}
	if err := os.Rename(temporary, a.path); err != nil {
		return err
	}
	file, err := os.OpenFile(a.path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	if a.file != nil {
		_ = a.file.Close()
	}
	a.file = file
	return nil
}

// take returns an address that no container has and none had lately.
func (a *addresses) take() (netip.Addr, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	for begin := a.next; ; {
		address := a.next
		a.advance()
		at, freed := a.freed[address]
		if !a.taken[address] && (!freed || now.Sub(at) >= a.quarantine) {
			delete(a.freed, address)
			a.taken[address] = true
			return address, nil
		}
		if a.next == begin {
			return netip.Addr{}, fmt.Errorf("no address is free in %v: all are in use, or were less "+
				"than %v ago", a.prefix, a.quarantine)
		}
	}
}

// use records that a container gets an address.
func (a *addresses) use(address netip.Addr, now time.Time) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.used[address] = true
	return a.record("used", address, now)
}

// free lets an address go. One that no container had can be given again at once.
func (a *addresses) free(address netip.Addr, at time.Time) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.taken, address)
	if !a.used[address] {
		return nil
	}
	delete(a.used, address)
	a.freed[address] = at
	return a.record("free", address, at)
}

func (a *addresses) record(what string, address netip.Addr, at time.Time) error {
	if a.lines >= maxJournal+len(a.used)+len(a.freed) {
		return a.compact(time.Now())
	}
	a.lines++
	_, err := fmt.Fprintf(a.file, "%s %v %d\n", what, address, at.Unix())
	return err
}

func (a *addresses) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	_ = a.file.Close()
}

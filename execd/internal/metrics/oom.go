package metrics

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"sync"
)

// OOMKills is the kernel's number of the processes of the sandbox that it has killed because memory
// ran out, the sandbox's or the machine's. Safe for concurrent use.
type OOMKills struct {
	mu     sync.Mutex
	file   *os.File // nil when there is none
	buffer [4 << 10]byte
}

// OpenOOMKills opens the number. Where the kernel does not show it, Count says so.
func OpenOOMKills(opts Options) *OOMKills {
	proc := opts.ProcRoot
	if proc == "" {
		proc = "/proc"
	}
	group, err := findCgroups(proc, opts.CgroupPrefix)
	if err != nil || group.memory.dir == "" {
		return &OOMKills{}
	}
	name := "memory.oom_control"
	if group.memory.v2 {
		name = "memory.events"
	}
	file, err := os.Open(filepath.Join(group.memory.dir, name))
	if err != nil {
		return &OOMKills{}
	}
	return &OOMKills{file: file}
}

// Count returns how many processes were killed until now, and whether that can be known.
func (o *OOMKills) Count() (int64, bool) {
	if o.file == nil {
		return 0, false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	n, _ := o.file.ReadAt(o.buffer[:], 0) // io.EOF comes with all of it
	for line := range bytes.Lines(o.buffer[:n]) {
		if value, ok := bytes.CutPrefix(line, []byte("oom_kill ")); ok {
			kills, err := strconv.ParseInt(string(bytes.TrimSpace(value)), 10, 64)
			return kills, err == nil
		}
	}
	return 0, false
}

package metrics

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// What is read at most of processes for their processor time.
const (
	maxProcesses = 4096
	maxStat      = 4 << 10 // bytes of one
)

// ProcessorTime is the processor time that the sandbox has used. Safe for concurrent use.
type ProcessorTime struct {
	proc string
	v2   bool // the format of the file

	mu     sync.Mutex
	file   *os.File // of the control group; nil when there is none
	buffer [maxStat]byte
}

// OpenProcessorTime opens the processor time of the sampler's control group. Where the kernel shows
// none, it is that of the processes there are: what one has used that has ended is gone from it.
func (s *Sampler) OpenProcessorTime() *ProcessorTime {
	p := &ProcessorTime{proc: s.proc, v2: s.group.cpuacct.v2}
	group := s.group.cpuacct
	if group.dir == "" {
		return p
	}
	name := "cpuacct.usage"
	if p.v2 {
		name = "cpu.stat"
	}
	if file, err := os.Open(filepath.Join(group.dir, name)); err == nil {
		p.file = file
	}
	return p
}

// Used returns the processor time that was used until now.
func (p *ProcessorTime) Used() (time.Duration, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.file == nil {
		return p.processes()
	}
	n, err := p.file.ReadAt(p.buffer[:], 0)
	if err != nil && !errors.Is(err, io.EOF) { // which comes with all of it
		return 0, err
	}
	text, unit := p.buffer[:n], time.Nanosecond
	if p.v2 {
		unit = time.Microsecond
		_, text, _ = bytes.Cut(text, []byte("usage_usec "))
		text, _, _ = bytes.Cut(text, []byte("\n"))
	}
	used, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
	return time.Duration(used) * unit, err
}

// processes returns the processor time of the processes that are visible. The caller holds mu.
func (p *ProcessorTime) processes() (time.Duration, error) {
	directory, err := os.Open(p.proc)
	if err != nil {
		return 0, err
	}
	defer directory.Close()
	var used time.Duration
	for read := 0; read < maxProcesses; {
		names, err := directory.Readdirnames(maxProcesses)
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return 0, err
		}
		for _, name := range names {
			if _, err := strconv.Atoi(name); err == nil {
				read++
				used += p.process(name)
			}
		}
	}
	return used, nil
}

// process returns the processor time of one process, 0 for one that has ended.
func (p *ProcessorTime) process(pid string) time.Duration {
	file, err := os.Open(filepath.Join(p.proc, pid, "stat"))
	if err != nil {
		return 0
	}
	defer file.Close()
	n, _ := io.ReadFull(file, p.buffer[:]) // the file is shorter
	// The name, in parentheses, may have any characters. utime and stime are the 12th and 13th
	// field after it (proc(5)).
	stat := p.buffer[:n]
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0
	}
	var ticks int64
	for _, field := range fields[11:13] {
		n, _ := strconv.ParseInt(string(field), 10, 64) // the kernel writes numbers
		ticks += n
	}
	return time.Duration(ticks) * userTick
}

package e2b

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"sandbox.internal/execd/command"
	"sandbox.internal/execd/terminal"
)

// What is kept of processes. The output of a process is in the log of its engine.
const (
	// maxProcessBytes bounds the configurations and tags of all processes together.
	maxProcessBytes = 32 << 20
	// processOverhead is what a process takes beside them, in bytes.
	processOverhead = 512
	// An end can be asked for as long as endKept after it, as far as it is among the last maxEnded.
	endKept  = 30 * time.Second
	maxEnded = 1000
)

// started is a process that a client has started. The processes own it.
type started struct {
	process
	tag     string
	config  processConfig // empty once it has ended
	size    int           // what it counts for
	added   bool
	order   int64 // of its start among all
	endedAt time.Time
}

// process is a process as it is at one time.
type process struct {
	pid      int
	command  *command.Command   // nil for a terminal, and when end is known
	terminal *terminal.Terminal // nil for a command, and when end is known
	end      *endEvent          // nil while it runs
}

// running reports whether the process runs, according to its engine, which records the end first.
func (p process) running() bool {
	switch {
	case p.end != nil:
		return false
	case p.terminal != nil:
		return p.terminal.Status().Running
	}
	return p.command.Status().Running
}

// signal signals the process alone, and reports whether it was there.
func (p process) signal(signal syscall.Signal) bool {
	switch {
	case p.end != nil:
		return false
	case p.terminal != nil:
		return p.terminal.Signal(signal)
	}
	return p.command.Signal(signal)
}

// processes are those that clients can name: those that run, and for a while those that have ended.
type processes struct {
	clock func() time.Time

	mu    sync.Mutex
	byPID map[int]*started
	ended []*started // oldest first
	size  int        // of all
	last  int64      // the order of the latest
}

func newProcesses(clock func() time.Time) *processes {
	return &processes{clock: clock, byPID: make(map[int]*started)}
}

// reserve makes room for a process. It is followed by add, or by release when the start fails.
func (p *processes) reserve(config processConfig, tag string) (*started, *failure) {
	s := &started{tag: tag, config: config, size: processOverhead + len(tag) + config.size()}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget()
	for p.size+s.size > maxProcessBytes && len(p.ended) > 0 {
		p.forgetOldest()
	}
	if p.size+s.size > maxProcessBytes {
		return nil, failf(codeResourceExhausted,
			"the processes of the sandbox were started with more than %d bytes of arguments together: end some", maxProcessBytes)
	}
	p.size += s.size
	return s, nil
}

func (p *processes) release(s *started) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.size -= s.size
}

// add makes a process known that was started. It may have ended since.
func (p *processes) add(s *started, as process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	as.end = s.end
	p.last++
	s.process, s.added, s.order = as, true, p.last
	p.byPID[s.pid] = s
	if s.end != nil {
		p.retire(s)
	}
}

// finish records the end of a process, perhaps before it was added.
func (p *processes) finish(s *started, end endEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.end, s.endedAt = &end, p.clock()
	if s.added {
		p.retire(s)
	}
}

// retire keeps of a process that has ended what clients can still ask for. The caller holds mu.
func (p *processes) retire(s *started) {
	p.size -= s.size
	s.config, s.command, s.terminal = processConfig{}, nil, nil
	if p.byPID[s.pid] != s { // a later process has its number
		return
	}
	s.size = processOverhead + len(s.tag)
	p.size += s.size
	p.ended = append(p.ended, s)
	p.forget()
}

// forget forgets the ends that are too old or too many. The caller holds mu.
func (p *processes) forget() {
	now := p.clock()
	for len(p.ended) > maxEnded || len(p.ended) > 0 && now.Sub(p.ended[0].endedAt) >= endKept {
		p.forgetOldest()
	}
}

func (p *processes) forgetOldest() {
	oldest := p.ended[0]
	p.ended = slices.Delete(p.ended, 0, 1)
	p.size -= oldest.size
	if p.byPID[oldest.pid] == oldest {
		delete(p.byPID, oldest.pid)
	}
}

// find returns the process that a client names. Of several with a tag it is the one that was
// started last, and one that has ended only when none runs.
func (p *processes) find(by selector) (process, *failure) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget()
	switch {
	case by.PID != nil:
		if s := p.byPID[int(*by.PID)]; s != nil {
			return s.process, nil
		}
		return process{}, failf(codeNotFound, "process with pid %d not found", *by.PID)
	case by.Tag != nil:
		var found *started
		for _, s := range p.byPID {
			if s.tag == *by.Tag && (found == nil || s.later(found)) {
				found = s
			}
		}
		if found != nil {
			return found.process, nil
		}
		return process{}, failf(codeNotFound, "process with tag %.128q not found", *by.Tag)
	}
	return process{}, failf(codeInvalidArgument, "process: must have a pid or a tag")
}

// later reports whether a process comes before another one with the same tag.
func (s *started) later(than *started) bool {
	if running := s.end == nil; running != (than.end == nil) {
		return running
	}
	return s.order > than.order
}

// list returns those that run, in the order of their starts.
func (p *processes) list() []processInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := slices.DeleteFunc(slices.Collect(maps.Values(p.byPID)), func(s *started) bool { return !s.running() })
	slices.SortFunc(all, func(a, b *started) int { return cmp.Compare(a.order, b.order) })
	list := make([]processInfo, len(all))
	for i, s := range all {
		list[i] = processInfo{Config: s.config, PID: s.pid, Tag: s.tag}
	}
	return list
}

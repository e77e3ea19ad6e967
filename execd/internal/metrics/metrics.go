// Package metrics measures the CPU and the memory of the sandbox as its own control groups see them
// (version 1, 2 and the mix of both), and its disk, so that a sandbox limited to half a core and
// 512 MiB reports these and not the machine's. Where the kernel shows no control group, the numbers
// are the machine's.
package metrics

import (
	"fmt"
	"sync"
	"time"
)

// minWindow is the shortest time over which CPU use is computed when there is a longer one to
// choose. Below it the scheduler's own accounting steps (up to 10 ms) would show as noise.
const minWindow = 100 * time.Millisecond

// mib is the number of bytes in a MiB.
const mib = 1 << 20

// Snapshot is the state at one moment.
type Snapshot struct {
	// CPUCount is how many cores the sandbox may use, as a fraction where a quota says so.
	CPUCount float64
	// CPUUsedPct is the part of these cores in use since the previous sample, 0 to 100.
	CPUUsedPct float64
	// MemTotalMiB is the limit of the sandbox, or the machine's memory where that is less or no
	// limit is set.
	MemTotalMiB float64
	// MemUsedMiB is the memory in use without the page cache that the kernel can drop at once
	// (inactive_file), as docker stats and the kubelet count it.
	MemUsedMiB float64
	// MemCacheMiB is the page cache of the sandbox; 0 where no control group counts that.
	MemCacheMiB float64
	// DiskTotalMiB is the size of the file system that has the sandbox's files, and DiskUsedMiB the
	// part in use. Without a limit of its disk that is the machine's, with what others use.
	DiskTotalMiB, DiskUsedMiB float64
	// Timestamp is when this was measured, in Unix milliseconds.
	Timestamp int64
}

// Options says where a Sampler reads. The zero value is right for production.
type Options struct {
	// ProcRoot is where proc is mounted. Empty means /proc.
	ProcRoot string
	// CgroupPrefix is put before the mount points of control groups, for tests on a tree of files.
	CgroupPrefix string
	// Now is the clock. Nil means time.Now.
	Now func() time.Time
}

// Sampler measures. It starts no goroutine and is safe for concurrent use.
type Sampler struct {
	proc  string
	group cgroups
	err   error // what New failed on
	now   func() time.Time

	mu     sync.Mutex
	last   reading // the newest measurement that began a window
	before reading // the one before it
}

// reading is CPU time used until a moment.
type reading struct {
	at   time.Time
	used time.Duration
}

// New returns a Sampler and takes the first measurement, so that the first Sample has the CPU use
// since New. It does not fail, for a daemon should start where metrics cannot be had: Sample
// returns what is wrong.
func New(opts Options) *Sampler {
	s := &Sampler{proc: opts.ProcRoot, now: opts.Now}
	if s.proc == "" {
		s.proc = "/proc"
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.group, s.err = findCgroups(s.proc, opts.CgroupPrefix); s.err != nil {
		return s
	}
	s.last, s.err = s.read()
	s.before = s.last
	return s
}

// Sample measures now. CPU use is over the time since the previous sample; callers that follow one
// another within 100 ms share a window, so that none of them sees the noise of a very short one. A
// caller that wants windows of its own (a stream, say) makes its own Sampler.
func (s *Sampler) Sample() (Snapshot, error) {
	if s.err != nil {
		return Snapshot{}, fmt.Errorf("metrics cannot be measured: %w", s.err)
	}
	cores, err := s.cpuCount()
	if err != nil {
		return Snapshot{}, err
	}
	total, used, cached, err := s.memory()
	if err != nil {
		return Snapshot{}, err
	}
	diskTotal, diskUsed, err := disk("/")
	if err != nil {
		return Snapshot{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	current, err := s.read()
	if err != nil {
		return Snapshot{}, err
	}
	since := s.before
	if current.at.Sub(s.last.at) >= minWindow {
		since = s.last
		s.before, s.last = s.last, current
	}
	return Snapshot{
		CPUCount:     cores,
		CPUUsedPct:   percent(current.used-since.used, current.at.Sub(since.at), cores),
		MemTotalMiB:  float64(total) / mib,
		MemUsedMiB:   float64(used) / mib,
		MemCacheMiB:  float64(cached) / mib,
		DiskTotalMiB: float64(diskTotal) / mib,
		DiskUsedMiB:  float64(diskUsed) / mib,
		Timestamp:    current.at.UnixMilli(),
	}, nil
}

func (s *Sampler) read() (reading, error) {
	used, err := s.cpuUsed()
	return reading{at: s.now(), used: used}, err
}

// percent is used over what the cores could have done in a window. Accounting and clock are not
// read at the same instant, so the quotient can leave its range by a little.
func percent(used, window time.Duration, cores float64) float64 {
	if window <= 0 || cores <= 0 {
		return 0
	}
	return min(max(float64(used)/(float64(window)*cores)*100, 0), 100)
}

package report

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/bench/measure"
)

type machine struct {
	CPUs   int    `json:"cpus"`
	Arch   string `json:"arch"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
	// FileSystem is what the directory for temporary files is on, such as "ext4".
	FileSystem string `json:"file_system"`
}

func thisMachine() machine {
	var name unix.Utsname
	unix.Uname(&name) // fails only for a bad pointer
	return machine{CPUs: runtime.NumCPU(), Arch: runtime.GOARCH,
		Kernel: unix.ByteSliceToString(name.Release[:]), Go: runtime.Version(),
		FileSystem: fileSystem(os.TempDir())}
}

// fileSystem returns the type of the file system that a directory is on, and whether it is an ext4
// without a journal, which creates files more slowly after many were deleted; "unknown" where
// mountinfo does not have it.
func fileSystem(directory string) string {
	var at unix.Stat_t
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || unix.Stat(directory, &at) != nil {
		return "unknown"
	}
	device := fmt.Sprintf("%d:%d", unix.Major(at.Dev), unix.Minor(at.Dev))
	for line := range strings.Lines(string(mounts)) {
		before, after, _ := strings.Cut(line, " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if len(left) < 3 || len(right) < 2 || left[2] != device {
			continue
		}
		if right[0] == "ext4" && !hasJournal(device) {
			return "ext4 without a journal"
		}
		return right[0]
	}
	return "unknown"
}

// hasJournal reports whether the kernel has a journal of a block device, MAJOR:MINOR; it is taken
// to have one where that cannot be seen.
func hasJournal(device string) bool {
	at, err := os.Readlink("/sys/dev/block/" + device)
	if err != nil {
		return true
	}
	journals, err := filepath.Glob("/proc/fs/jbd2/" + filepath.Base(at) + "-*") // such as vda1-8
	return err != nil || len(journals) > 0
}

// commit is the repository's commit, with "+changes" when files differ from it; "unknown" without
// git.
func commit() string {
	head, err := exec.Command("git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	name := strings.TrimSpace(string(head))
	// What a run itself writes is no change.
	if changed, err := exec.Command("git", "status", "--porcelain", "--untracked-files=no", "--",
		":!docs/benchmarks").Output(); err != nil || len(changed) > 0 {
		name += "+changes"
	}
	return name
}

// Load is what the machine did beside the bench: figures of a busy one are not worth much.
type Load struct {
	// Before is the share of the processors that was busy in the second before the run, 0 to 1.
	Before float64 `json:"busy_before"`
	// After is the same in the second behind it.
	After float64 `json:"busy_after"`
}

// String is the load for readers.
func (l Load) String() string {
	return fmt.Sprintf("processors %s%% busy before and %s%% after it", measure.Number(100*l.Before),
		measure.Number(100*l.After))
}

// BusyShare is the share of the processors that is busy during a second.
func BusyShare(ctx context.Context) (float64, error) {
	busy, all, err := ticks()
	if err != nil {
		return 0, err
	}
	if err := measure.Pause(ctx, time.Second); err != nil {
		return 0, err
	}
	busyThen, allThen, err := ticks()
	if err != nil || allThen == all {
		return 0, err
	}
	return measure.Rounded((busyThen - busy) / (allThen - all)), nil
}

// ticks are the processors' time since the boot (proc(5), /proc/stat).
func ticks() (busy, all float64, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	var user, nice, system, idle, iowait, irq, softirq, steal float64
	if _, err := fmt.Sscanf(string(text), "cpu %g %g %g %g %g %g %g %g", &user, &nice, &system,
		&idle, &iowait, &irq, &softirq, &steal); err != nil {
		return 0, 0, fmt.Errorf("/proc/stat: %w", err)
	}
	busy = user + nice + system + irq + softirq + steal
	return busy, busy + idle + iowait, nil
}

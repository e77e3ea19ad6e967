package process

import (
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// oomPreference is added to the oom_score_adj of a process, in thousandths of the memory that may
// be used. With it every such process counts more than execd, as long as execd itself takes less
// than half of the memory.
const oomPreference = 500

// PreferForOOMKill has the kernel end a process of the sandbox's user, and those that it starts
// from now on, before a process of ours when memory is used up. Otherwise it ends the largest,
// which is ours as soon as many small ones have used up the memory: then no command has a stream
// any more. Among themselves the user's processes count as before, if all are preferred. An engine
// may have left no room for this (1000 is the most), and a process that has ended needs none:
// neither is an error.
func PreferForOOMKill(pid int) {
	own := oomScore()
	if score := min(own+oomPreference, 1000); score > own {
		writeOOMScore("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", score)
	}
}

// oomScore is that of this process, which no one changes.
var oomScore = sync.OnceValue(func() int {
	fd, err := unix.Open("/proc/self/oom_score_adj", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 1000
	}
	defer unix.Close(fd)
	var text [16]byte
	n, _ := unix.Read(fd, text[:])
	score, err := strconv.Atoi(strings.TrimSpace(string(text[:max(n, 0)])))
	if err != nil {
		return 1000
	}
	return score
})

func writeOOMScore(path string, score int) {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	_, _ = unix.Write(fd, []byte(strconv.Itoa(score)))
}

package api_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	gen "sandbox.internal/clients/go/execd"
	"sandbox.internal/test/wait"
)

// held is what a daemon holds.
type held struct {
	Goroutines int
	// Heap is the most memory that the heap has ever had, in bytes.
	Heap uint64

	descriptors, processes int
}

// reportHolds is the child's side of holds.
func reportHolds() {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1)
	for range asked {
		var memory runtime.MemStats
		runtime.ReadMemStats(&memory)
		line, err := json.Marshal(held{Goroutines: runtime.NumGoroutine(), Heap: memory.HeapSys})
		if err != nil {
			panic(err)
		}
		os.Stdout.Write(append(line, '\n'))
	}
}

// holds asks the child what it holds now.
func (c *child) holds(t *testing.T) held {
	t.Helper()
	before := len(c.output.bytes())
	must(t, syscall.Kill(c.pid, syscall.SIGUSR1))
	var now held
	wait.Until(t, "the child reports what it holds", func() bool {
		for line := range bytes.Lines(c.output.bytes()[before:]) {
			if json.Unmarshal(line, &now) == nil && now.Goroutines > 0 {
				return true
			}
		}
		return false
	})
	descriptors, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", c.pid))
	must(t, err)
	now.descriptors, now.processes = len(descriptors), len(c.children(t))
	return now
}

// children returns the child's own children, zombies included.
func (c *child) children(t *testing.T) []int {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", c.pid))
	must(t, err)
	var pids []int
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			continue // a thread that has ended
		}
		for _, word := range strings.Fields(string(text)) {
			pid, err := strconv.Atoi(word)
			must(t, err)
			pids = append(pids, pid)
		}
	}
	return pids
}

// atRest returns what the child holds after one command: what is made once is there.
func (c *child) atRest(t *testing.T, d *daemon) held {
	t.Helper()
	d.run(t, gen.CommandRequest{Command: "true"}).all(1)
	return c.holds(t)
}

// backTo waits until the child holds no more than before.
func (c *child) backTo(t *testing.T, before held) {
	t.Helper()
	var now held
	defer func() {
		if t.Failed() {
			t.Logf("the child held %+v and holds %+v", before, now)
		}
	}()
	wait.Until(t, "the child releases everything", func() bool {
		now = c.holds(t)
		return now.Goroutines <= before.Goroutines && now.descriptors <= before.descriptors && now.processes <= before.processes
	})
}

// takeDescriptors has the kernel give the child no descriptor any more: not one that another of its
// descriptors leaves free either, as there are under a limit that the child has reached. The
// connection of the daemon's client stays.
func (c *child) takeDescriptors(t *testing.T, d *daemon) {
	t.Helper()
	response, err := d.client.GetMetrics(t.Context(), nil)
	body(t, response, err)
	must(t, unix.Prlimit(c.pid, unix.RLIMIT_NOFILE, &unix.Rlimit{}, nil))
}

package local_test

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/e2e/conformance/localengine"
	"sandbox.internal/test/random"
	"sandbox.internal/test/wait"
)

var soakTime = flag.Duration("soak", 0, "how long TestSoak creates, uses and deletes sandboxes, at least; 0: as long as the command that runs it wants (random.Long)")

// TestSoak creates, uses and deletes sandboxes at the machine's limit. What service, keeper and
// kernel hold at the end is what they held after the first minute, or after the first quarter of a
// shorter time.
func TestSoak(t *testing.T) {
	on := newMachines()
	long := cmp.Or(*soakTime, random.Long(12*time.Second, 30*time.Second))
	s := conformance.Start(t, onLocal(on), conformance.Plan{Program: true, Server: "terminated_retention = 1"})
	m := on.of(s.Instance)
	idle := s.Idle()
	idle.Timeout = int((long + 10*time.Minute).Seconds())
	keep := s.Running(t, idle) // so that there is a keeper whenever it is measured
	warm := min(long/4, time.Minute)
	count := soak(t, s, warm)
	first := m.settled(t, s)
	count += soak(t, s, long-warm)
	last := m.settled(t, s)
	t.Logf("%d lives\nfirst %+v\nlast  %+v", count, first, last)
	for name, values := range map[string][2]int{
		"descriptors":       {first.descriptors, last.descriptors},
		"goroutines":        {first.goroutines, last.goroutines},
		"mounts":            {first.mounts, last.mounts},
		"rules":             {first.rules, last.rules},
		"files on the disk": {first.files, last.files},
	} {
		if values[1] > values[0]+max(3, values[0]/10) {
			t.Errorf("%s: %d after the first minute, %d at the end", name, values[0], values[1])
		}
	}
	// Memory that was used once is given back late.
	if last.memory > first.memory*11/10+4<<20 {
		t.Errorf("resident memory: %d bytes after the first minute, %d at the end", first.memory, last.memory)
	}
	s.Delete(t, keep)
}

// soak goes on for a time, and until each of its workers has had some lives, however slow the
// machine is.
func soak(t *testing.T, s *conformance.Service, long time.Duration) int {
	t.Helper()
	const least = 4
	var workers sync.WaitGroup
	var mu sync.Mutex
	count, end := 0, time.Now().Add(long)
	for range 4 {
		workers.Go(func() {
			for own := 0; (own < least || time.Now().Before(end)) && !t.Failed(); own++ {
				id := s.Running(t, s.Idle())
				s.Enter(t, id).Want(t, "echo used", "used\n")
				s.Send(t, http.MethodDelete, "/v1/sandboxes/"+id, "", "Prefer", "wait=30")
				mu.Lock()
				count++
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	return count
}

// held is what service and keeper hold.
type held struct {
	descriptors, goroutines, mounts, rules, files int
	memory                                        int64 // bytes
}

// settled returns what is held once every sandbox but one has been forgotten.
func (m machine) settled(t *testing.T, s *conformance.Service) held {
	t.Helper()
	wait.Until(t, "the records of what has ended are gone", func() bool { return len(s.Everything(t)) == 1 })
	m.awaitEmptyTrash(t)
	s.HTTP.CloseIdleConnections()
	return m.measure(t, s)
}

func (m machine) measure(t *testing.T, s *conformance.Service) held {
	t.Helper()
	var h held
	pids := []int{s.PID}
	for pid, line := range localengine.CommandLines() {
		if strings.Contains(line, "/run/sandbox-local/"+m.Key()+"\x00") {
			pids = append(pids, pid)
		}
	}
	if len(pids) != 2 {
		t.Fatalf("processes %v, want the service and its keeper", pids)
	}
	for _, pid := range pids {
		directory := fmt.Sprintf("/proc/%d/", pid)
		descriptors, err := os.ReadDir(directory + "fd")
		if err != nil {
			t.Fatal(err)
		}
		h.descriptors += len(descriptors)
		mounts, err := os.ReadFile(directory + "mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(mounts)) { // others mount, too
			if strings.Contains(line, m.Directory) || strings.Contains(line, "/run/sandbox-local/"+m.Key()) {
				h.mounts++
			}
		}
		status, err := os.ReadFile(directory + "status")
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(status), "VmRSS:")
		kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		h.memory += kib << 10
	}
	rules, err := exec.CommandContext(t.Context(), "nft", "list", "table", "inet", m.Bridge).Output()
	if err != nil {
		t.Fatal(err)
	}
	h.rules = len(bytes.Fields(rules)) // with the elements of sets and maps
	if err := filepath.WalkDir(m.Directory, func(path string, entry fs.DirEntry, err error) error {
		if strings.HasSuffix(path, "/images") { // they are not made here
			return fs.SkipDir
		}
		h.files++
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(metrics(t, s)) {
		if value, found := strings.CutPrefix(line, "go_goroutines "); found {
			goroutines, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				t.Fatal(err)
			}
			h.goroutines = int(goroutines)
		}
	}
	return h
}

func metrics(t *testing.T, s *conformance.Service) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set(conformance.KeyHeader, conformance.AdminKey)
	response, err := http.DefaultTransport.RoundTrip(request) // the contract has no such operation
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("GET /metrics: %s %v", response.Status, err)
	}
	return string(text)
}

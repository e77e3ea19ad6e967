package process_test

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/execd/process"
)

func TestOnOneProcessor(t *testing.T) {
	before := processors(t)
	if len(before) != 1 {
		t.Fatalf("the threads have the processors %q before", before)
	}
	process.OnOneProcessor(func() {
		if during := processors(t); len(during) != 1 || strings.ContainsAny(during[0], "-,") {
			t.Errorf("the threads have the processors %q, want one", during)
		}
		process.ReserveThreads(runtime.GOMAXPROCS(0), 5) // new ones
	})
	if after := processors(t); !slices.Equal(after, before) {
		t.Errorf("the threads have the processors %q after, and had %q", after, before)
	}
}

// processors returns the lists of processors that threads of this process may run on, each once.
func processors(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil {
		t.Fatal(err)
	}
	var lists []string
	for _, file := range files {
		status, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		_, list, _ := strings.Cut(string(status), "Cpus_allowed_list:\t")
		list, _, _ = strings.Cut(list, "\n")
		if !slices.Contains(lists, list) {
			lists = append(lists, list)
		}
	}
	return lists
}

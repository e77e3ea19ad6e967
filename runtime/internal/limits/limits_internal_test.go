package limits

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestProcessorsWithTheLeastLimitsAreTaken(t *testing.T) {
	p := NewProcessors([]int{0, 1, 4, 5})
	want := func(id string, nanoCPUs int64, numbers ...int) {
		t.Helper()
		if got := p.Take(id, nanoCPUs); !slices.Equal(got, numbers) {
			t.Errorf("%s with %d has %v, want %v", id, nanoCPUs, got, numbers)
		}
	}
	want("a", 2e9, 0, 1)
	want("b", 5e8, 4)
	want("c", 1500e6, 4, 5) // 5 has none, 4 a half
	want("all", 4e9)
	want("unlimited", 0)
	want("d", 3001e6)
	p.Release("a")
	p.Release("a") // and what has none
	p.Release("unlimited")
	want("e", 1e9, 0)
	p.Adopt("f", []int{1}, 1e9)
	p.Adopt("whole", []int{0, 1, 4, 5}, 1e9) // it was started when processors were not chosen
	want("g", 1e9, 5)
	for _, id := range []string{"b", "c", "e", "f", "g"} {
		p.Release(id)
	}
	for number, load := range p.load {
		if load != 0 {
			t.Errorf("processor %d has %d when all are gone", number, load)
		}
	}
	if len(p.shares) != 0 {
		t.Errorf("%v are left", p.shares)
	}
}

func TestWithoutSetsOfProcessorsNothingIsChosen(t *testing.T) {
	if got := NewProcessors(nil).Take("a", 1e9); got != nil {
		t.Errorf("it is %v", got)
	}
}

func TestShownProcessors(t *testing.T) {
	const one = "processor\t: 0\nmodel name\t: a processor\nsiblings\t: 4\ncpu cores\t: 2\n\n"
	all := one + strings.ReplaceAll(one, ": 0", ": 1") + strings.ReplaceAll(one, ": 0", ": 2")
	const arm = "processor\t: 0\nBogoMIPS\t: 48.00\n\nprocessor\t: 1\nBogoMIPS\t: 48.00\n\nHardware\t: a machine\n"
	for name, c := range map[string]struct {
		all   string
		count int
		want  string
	}{
		"one":               {all, 1, "processor\t: 0\nmodel name\t: a processor\nsiblings\t: 1\ncpu cores\t: 1\n\n"},
		"two":               {all, 2, strings.ReplaceAll(one+strings.ReplaceAll(one, ": 0", ": 1"), "siblings\t: 4", "siblings\t: 2")},
		"about the machine": {arm, 1, "processor\t: 0\nBogoMIPS\t: 48.00\n\nHardware\t: a machine\n"},
	} {
		if got := string(firstProcessors([]byte(c.all), c.count)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestShownMemory(t *testing.T) {
	proc := t.TempDir()
	const machine = "MemTotal:       24683620 kB\nMemFree:        16711776 kB\nMemAvailable:   23604264 kB\nCached:          6145232 kB\n" +
		"SwapTotal:       1048572 kB\nCommitLimit:    12341808 kB\nHugePages_Total:       5\nHugepagesize:       2048 kB\n"
	if err := os.WriteFile(filepath.Join(proc, "meminfo"), []byte(machine), 0o600); err != nil {
		t.Fatal(err)
	}
	files := NewFiles(proc)
	for limit, want := range map[int64]string{
		64 << 20: "MemTotal:          65536 kB\nMemFree:           65536 kB\nMemAvailable:      65536 kB\nCached:                0 kB\n" +
			"SwapTotal:             0 kB\nCommitLimit:       65536 kB\nHugePages_Total:       0\nHugepagesize:       2048 kB\n",
		1 << 50: "MemTotal:       24683620 kB\nMemFree:        24683620 kB\nMemAvailable:   24683620 kB\nCached:                0 kB\n" +
			"SwapTotal:             0 kB\nCommitLimit:    24683620 kB\nHugePages_Total:       0\nHugepagesize:       2048 kB\n",
	} {
		got, err := files.withMemory(limit)
		if err != nil || string(got) != want {
			t.Errorf("%d bytes: %q, %v, want %q", limit, got, err, want)
		}
	}
}

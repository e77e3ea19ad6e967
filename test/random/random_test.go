package random_test

import (
	"fmt"
	"strings"
	"testing"

	"sandbox.internal/test/random"
)

// recorder is a test whose log is looked at.
type recorder struct {
	log, failure string
}

func (*recorder) Helper() {}

func (r *recorder) Logf(format string, args ...any) { r.log += fmt.Sprintf(format, args...) }

func (r *recorder) Fatalf(format string, args ...any) { r.failure += fmt.Sprintf(format, args...) }

// TestSeed: the seed that the log names repeats the numbers, and without one they are others.
func TestSeed(t *testing.T) {
	t.Setenv(random.SeedVariable, "")
	var first, second, third recorder
	had := random.New(&first).Uint64()
	if other := random.New(&second).Uint64(); other == had {
		t.Errorf("two tests have the number %d", had)
	}
	_, seed, found := strings.Cut(first.log, random.SeedVariable+"=")
	seed, _, _ = strings.Cut(seed, " ")
	t.Setenv(random.SeedVariable, seed)
	if again := random.New(&third).Uint64(); !found || again != had {
		t.Errorf("with the seed of %q the number is %d, want %d", first.log, again, had)
	}
	t.Setenv(random.SeedVariable, "x")
	var refused recorder
	if random.New(&refused); !strings.Contains(refused.failure, random.SeedVariable) {
		t.Errorf("a seed that is no number: %q", refused.failure)
	}
}

// TestLong: the variable alone makes a test go on for longer.
func TestLong(t *testing.T) {
	for value, want := range map[string]int{"": 1, "1": 2} {
		t.Setenv(random.LongVariable, value)
		if got := random.Long(1, 2); got != want {
			t.Errorf("with %q: %d, want %d", value, got, want)
		}
	}
}

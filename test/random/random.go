// Package random has the random numbers of tests whose schedules are random, so that one that has
// failed can be repeated.
package random

import (
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
)

// SeedVariable is the environment variable with the seed of a run that is to be repeated: a whole
// number from 0 to 2^64-1.
const SeedVariable = "TEST_SEED"

// TB is the part of testing.TB that New needs.
type TB interface {
	Helper()
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// New returns random numbers from the [Seed] of a test. Several goroutines may use them at once; a
// seed then repeats the numbers, and not which goroutine gets which.
func New(t TB) *rand.Rand {
	t.Helper()
	return From(Seed(t))
}

// Seed returns the seed of a test, whose log names it: that of [SeedVariable], or a new one. A
// value of the variable that is no seed fails the test.
func Seed(t TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv(SeedVariable); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: must be a whole number from 0 to 2^64-1, got %q", SeedVariable, text)
		}
	}
	t.Logf("random numbers: %s=%d repeats them", SeedVariable, seed)
	return seed
}

// From returns the random numbers of a seed, for a process that a test has given one to. Several
// goroutines may use them at once.
func From(seed uint64) *rand.Rand { return rand.New(&source{pcg: rand.NewPCG(seed, 0)}) }

// source lets several goroutines use a generator.
type source struct {
	mu  sync.Mutex
	pcg *rand.PCG
}

// Uint64 implements rand.Source.
func (s *source) Uint64() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pcg.Uint64()
}

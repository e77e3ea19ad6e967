package ingress_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"sandbox.internal/server/ingress"
	"sandbox.internal/test/wait"
)

// TestLogLinesAreKept: every line is written once and whole, whether it waits, is too much to wait,
// or is the last.
func TestLogLinesAreKept(t *testing.T) {
	kept := &logBuffer{}
	log := ingress.NewLogWriter(kept)
	line := func(i int) string { return fmt.Sprintf("line %06d %s\n", i, strings.Repeat("x", 100)) }
	if _, err := log.WriteLevel(zerolog.InfoLevel, []byte(line(0))); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "a line that waits alone", func() bool { return kept.text() == line(0) })
	const each = 2000
	var writers sync.WaitGroup
	for writer := range 4 {
		writers.Go(func() {
			for i := range each {
				if _, err := log.WriteLevel(zerolog.InfoLevel, []byte(line(1+writer*each+i))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for text := range strings.Lines(kept.text()) {
		seen[text] = true
	}
	for i := range 1 + 4*each {
		if !seen[line(i)] {
			t.Fatalf("line %d is missing", i)
		}
	}
	if got := strings.Count(kept.text(), "\n"); got != 1+4*each {
		t.Errorf("%d lines", got)
	}
}

// TestLogTellsTroubleAtOnce: a warning does not wait, and neither do the lines before it.
func TestLogTellsTroubleAtOnce(t *testing.T) {
	kept := &logBuffer{}
	lines := ingress.NewLogWriter(kept)
	logger := zerolog.New(lines)
	logger.Info().Msg("first")
	logger.Warn().Msg("second")
	const want = `{"level":"info","message":"first"}` + "\n" + `{"level":"warn","message":"second"}` + "\n"
	if got := kept.text(); got != want {
		t.Errorf("written: %q, want %q", got, want)
	}
}

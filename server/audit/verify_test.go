package audit_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"sandbox.internal/server/audit"
)

// TestVerifyFindsEveryChangedByte changes each byte of a log to every kind of other byte.
func TestVerifyFindsEveryChangedByte(t *testing.T) {
	log := sample(t, 3)
	verify(t, log)
	for at := range log {
		for _, flip := range []byte{0x01, 0x20, 0x80, 0xff, log[at] ^ '\n', log[at] ^ '"'} {
			if flip == 0 {
				continue
			}
			changed := slices.Clone(log)
			changed[at] ^= flip
			if _, err := audit.Verify(bytes.NewReader(changed), ""); err == nil {
				t.Fatalf("byte %d from %q to %q was not found", at, log[at], changed[at])
			}
		}
	}
}

// TestVerifyFindsWhatHappenedToLines removes, repeats and moves lines, and cuts the file at every
// byte.
func TestVerifyFindsWhatHappenedToLines(t *testing.T) {
	log := sample(t, 5)
	lines := bytes.SplitAfter(log, []byte("\n"))
	lines = lines[:len(lines)-1]
	rapid.Check(t, func(t *rapid.T) {
		changed := slices.Clone(lines)
		i := rapid.IntRange(0, len(lines)-1).Draw(t, "line")
		switch rapid.SampledFrom([]string{"remove", "repeat", "move", "copy"}).Draw(t, "what") {
		case "remove":
			if i == len(lines)-1 {
				return // nothing shows that it was there
			}
			changed = slices.Delete(changed, i,
				i+1+rapid.IntRange(0, len(lines)-2-i).Draw(t, "more"))
		case "repeat":
			changed = slices.Insert(changed, i, changed[i])
		case "move":
			j := rapid.IntRange(0, len(lines)-1).Draw(t, "to")
			if i == j {
				return
			}
			moved := changed[i]
			changed = slices.Insert(slices.Delete(changed, i, i+1), j, moved)
		case "copy":
			j := rapid.IntRange(0, len(lines)-1).Draw(t, "over")
			if i == j {
				return
			}
			changed[j] = changed[i]
		}
		if _, err := audit.Verify(bytes.NewReader(slices.Concat(changed...)), ""); err == nil {
			t.Fatalf("not found:\n%s", slices.Concat(changed...))
		}
	})
	whole := map[int]bool{}
	for end := 0; len(lines) > 0; lines = lines[1:] {
		end += len(lines[0])
		whole[end] = true
	}
	for end := range log {
		_, err := audit.Verify(bytes.NewReader(log[:end]), "")
		if whole[end] != (err == nil) || !whole[end] && end > 0 && !errors.Is(err, audit.ErrTorn) {
			t.Fatalf("cut at byte %d: %v", end, err)
		}
	}
}

func TestVerifyNamesTheFirstBrokenLine(t *testing.T) {
	log := sample(t, 2) // anchor, intent, outcome, intent, outcome
	lines := bytes.SplitAfter(log, []byte("\n"))
	changed := slices.Clone(log)
	changed[len(lines[0])+len(lines[1])+100] ^= 1
	brokenAt(t, changed, 3, "a changed byte")
	brokenAt(t, slices.Concat(lines[1:]...), 1, "the first line removed")
	brokenAt(t, slices.Concat(lines[0], lines[2]), 2, "the second line removed")
	brokenAt(t, nil, 1, "an empty file")
	brokenAt(t, []byte("root:x:0:0:root:/root:/bin/sh\n"), 1, "another file")
	brokenAt(t, bytes.Repeat([]byte("x"), 3<<20), 1, "an endless line")
}

func TestVerifyReports(t *testing.T) {
	log := sample(t, 3)
	report := verify(t, log)
	if report.Lines != 7 || report.First != 1 || report.Last != 7 || report.Open != 0 ||
		report.Repairs != 0 || !report.NewChain() {
		t.Errorf("%+v", report)
	}
	lines := bytes.SplitAfter(log, []byte("\n"))
	cut := slices.Concat(lines[:6]...)
	if got := verify(t, cut); got.Open != 1 {
		t.Errorf("an intention without an outcome: %+v", got)
	}
	// Lines that were cut off at the end show only to who kept the hash.
	if got, err := audit.Verify(bytes.NewReader(cut), report.Hash); err != nil || got.Expected {
		t.Errorf("the kept hash of a line that was cut off: %+v, %v", got, err)
	}
	if got, err := audit.Verify(bytes.NewReader(log), verify(t, cut).Hash); err != nil ||
		!got.Expected {
		t.Errorf("the kept hash of a line that is there: %+v, %v", got, err)
	}
}

package audit_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"sandbox.internal/server/audit"
)

func TestLinesHaveCallerOperationAndOutcome(t *testing.T) {
	path := filepath.Join(t.TempDir(), "directory", "audit.log")
	log := open(t, path)
	record(t, log, "first")
	if err := log.Conclude(audit.Entry{Operation: "createSandbox", Status: 400,
		Code: "INVALID_REQUEST_BODY"}); err != nil {
		t.Fatal(err)
	}
	close(t, log)
	var kinds []any
	for text := range strings.Lines(string(read(t, path))) {
		var line map[string]any
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		kinds = append(kinds, line["kind"])
		if _, err := time.Parse(time.RFC3339Nano, line["time"].(string)); err != nil {
			t.Error(err)
		}
		if line["kind"] == "outcome" &&
			(line["intent"] != 2.0 || line["status"] != 202.0 ||
				line["sandbox_id"] != "sandbox-of-first" || line["key_name"] != "ci") {
			t.Errorf("outcome %v", line)
		}
	}
	if got := fmt.Sprint(kinds); got != "[anchor intent outcome refused]" {
		t.Errorf("kinds %s", got)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode: %v, %v", info, err)
	}
}

// TestChainGoesOnOverRestartsAndRotations does what operators and crashes do, in any order.
func TestChainGoesOnOverRestartsAndRotations(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			r.Fatal(err)
		}
		path := filepath.Join(dir, "audit.log")
		log := open(t, path)
		var files []string
		repairs := 0
		for range rapid.IntRange(1, 12).Draw(r, "steps") {
			switch rapid.SampledFrom([]string{"record", "record", "restart", "rotate", "reopen",
				"crash"}).Draw(r, "step") {
			case "record":
				record(t, log, "x")
			case "restart":
				close(t, log)
				log = open(t, path)
			case "reopen":
				if err := log.Reopen(); err != nil {
					r.Fatal(err)
				}
			case "rotate":
				files = append(files, fmt.Sprintf("%s.%d", path, len(files)))
				if err := os.Rename(path, files[len(files)-1]); err != nil {
					r.Fatal(err)
				}
				record(t, log, "between the rename and the signal")
				if err := log.Reopen(); err != nil {
					r.Fatal(err)
				}
			case "crash":
				close(t, log)
				content := read(t, path)
				last := content[bytes.LastIndexByte(content[:len(content)-1], '\n')+1:]
				torn := rapid.IntRange(1, len(last)-1).Draw(r, "bytes of a line")
				write(t, path, append(content, last[:torn]...))
				log = open(t, path)
				repairs++
			}
		}
		close(t, log)
		var before audit.Report
		for i, file := range append(files, path) {
			report := verify(t, read(t, file))
			if i > 0 && !report.Continues(before) || i == 0 && !report.NewChain() {
				r.Fatalf("%s begins at %s, the one before it ends at %s", file, report.Begin,
					before.Hash)
			}
			repairs -= report.Repairs
			before = report
		}
		if repairs != 0 {
			r.Errorf("%d repairs are not in the log", repairs)
		}
	})
}

// TestCrashAtEveryByte leaves every part of the last line, and of the first.
func TestCrashAtEveryByte(t *testing.T) {
	content := sample(t, 1)
	begin := bytes.LastIndexByte(content[:len(content)-1], '\n') + 1
	dir := t.TempDir()
	for end := range len(content) {
		if end > 300 && end < begin {
			continue
		}
		path := filepath.Join(dir, fmt.Sprint(end))
		write(t, path, content[:end])
		log := open(t, path)
		close(t, log)
		after := read(t, path)
		report := verify(t, after)
		if torn := end - bytes.LastIndexByte(content[:end], '\n') - 1; torn > 0 {
			var last struct {
				Torn      string
				TornBytes int `json:"torn_bytes"`
			}
			lines := bytes.Split(after, []byte("\n"))
			if err := json.Unmarshal(lines[len(lines)-2], &last); err != nil ||
				last.TornBytes != torn || last.Torn != string(content[end-torn:end]) {
				t.Fatalf("cut at %d: %+v, %v", end, last, err)
			}
		}
		if report.Lines < 1 {
			t.Fatalf("cut at %d: %+v", end, report)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	content := sample(t, 2)
	changed := bytes.Clone(content)
	changed[len(content)/2] ^= 1
	for name, test := range map[string]struct {
		content []byte
		want    string
	}{
		"a changed line":         {changed, "evidence"},
		"lines cut off before":   {content[bytes.IndexByte(content, '\n')+1:], "evidence"},
		"another program's file": {[]byte("root:x:0:0\n"), "is not an audit log"},
	} {
		path := filepath.Join(t.TempDir(), "audit.log")
		write(t, path, test.content)
		_, err := audit.Open(path, zerolog.Nop(), time.Now)
		if err == nil || !strings.Contains(err.Error(), test.want) ||
			!strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
		if !bytes.Equal(read(t, path), test.content) {
			t.Errorf("%s: the file was changed", name)
		}
	}
	path := filepath.Join(t.TempDir(), "audit.log")
	open(t, path)
	if _, err := audit.Open(path, zerolog.Nop(), time.Now); err == nil ||
		!strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("a second writer: %v", err)
	}
}

func TestReopenKeepsTheOldFileWhenTheNewOneIsNotEmpty(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	log := open(t, path)
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	write(t, path, []byte("something\n"))
	if err := log.Reopen(); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("reopen: %v", err)
	}
	record(t, log, "x")
	if got := verify(t, read(t, path+".1")); got.Lines != 3 {
		t.Errorf("the old file: %+v", got)
	}
}

func TestConcurrentWritersAreOrdered(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	log := open(t, path)
	var writers sync.WaitGroup
	for i := range 16 {
		writers.Go(func() {
			for j := range 25 {
				record(t, log, fmt.Sprint(i, "-", j))
			}
		})
	}
	writers.Wait()
	close(t, log)
	if got := verify(t, read(t, path)); got.Lines != 1+16*25*2 || got.Open != 0 {
		t.Errorf("%+v", got)
	}
}

// TestFullDisk writes to a file system of 64 KiB until it is full.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatalf("this test mounts a small file system, which takes root: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(dir, "audit.log")
	log := open(t, path)
	t.Cleanup(func() { close(t, log) }) // before the file system goes
	entry := audit.Entry{Operation: "createSandbox", RequestID: strings.Repeat("x", 128)}
	full := func() bool {
		_, _, err := log.Intend(entry)
		return err != nil
	}
	for range 1000 {
		if full() {
			break
		}
	}
	if !full() {
		t.Fatal("the disk is not full")
	}
	verify(t, read(t, path)) // nothing is left of the lines that did not fit
	if err := log.Reopen(); err != nil {
		t.Fatalf("reopen: %v", err)
	}
	if err := os.Rename(path, filepath.Join(dir, "old")); err != nil {
		t.Fatal(err)
	}
	before := verify(t, read(t, filepath.Join(dir, "old")))
	if err := os.Remove(filepath.Join(dir, "old")); err != nil {
		t.Fatal(err)
	}
	// The space is free once the old file is closed, which the new one needs a page for.
	if err := log.Reopen(); err == nil {
		if after := verify(t, read(t, path)); !after.Continues(before) {
			t.Errorf("begins at %s, the one before ends at %s", after.Begin, before.Hash)
		}
		record(t, log, "after")
	} else if !strings.Contains(err.Error(), "no space left") {
		t.Errorf("reopen: %v", err)
	}
}

func TestClosedLogRefuses(t *testing.T) {
	log := open(t, filepath.Join(t.TempDir(), "audit.log"))
	close(t, log)
	close(t, log)
	if _, _, err := log.Intend(audit.Entry{}); err == nil {
		t.Error("an intention after the end")
	}
	if err := log.Reopen(); err == nil {
		t.Error("a reopening after the end")
	}
}

// TestLongestLine: a line that Verify could not read is refused, and the log goes on without it.
func TestLongestLine(t *testing.T) {
	const longest = 1 << 20
	path := filepath.Join(t.TempDir(), "audit.log")
	at := time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
	log, err := audit.Open(path, zerolog.Nop(), func() time.Time { return at })
	if err != nil {
		t.Fatal(err)
	}
	entry := audit.Entry{Method: "x"}
	if err := log.Conclude(entry); err != nil {
		t.Fatal(err)
	}
	lines := bytes.Split(read(t, path), []byte("\n"))
	around := len(lines[1]) - len(entry.Method)

	entry.Method = strings.Repeat("x", longest-around+1)
	if err := log.Conclude(entry); err == nil {
		t.Error("a refusal was recorded in a line that is too long")
	}
	longer := audit.Entry{Method: entry.Method + "x"} // "intent" is shorter than "refused"
	if _, _, err := log.Intend(longer); err == nil {
		t.Error("an intention was recorded in a line that is too long")
	}
	entry.Method = entry.Method[1:]
	if err := log.Conclude(entry); err != nil {
		t.Errorf("a line of %d bytes: %v", longest, err)
	}
	record(t, log, "x")
	close(t, log)
	if got := verify(t, read(t, path)); got.Lines != 5 {
		t.Errorf("%+v", got)
	}
}

package oci_test

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci"
	"sandbox.internal/test/wait"
)

// lastCount returns the last number that a container of the probe's count has printed, -1 for none.
func lastCount(t *testing.T, e *oci.Engine, id string) int {
	t.Helper()
	text, err := e.Logs(t.Context(), id, 1)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		return -1
	}
	return number
}

// TestLogSince: a part of a log by time begins where the container was at that time.
func TestLogSince(t *testing.T) {
	s := newSite(t, "crun")
	e := s.mustOpen(t)
	defer closeEngine(t, e)
	id := start(t, e, probe(loadProbe(t, e), "count"))
	wait.Until(t, "the container has printed", func() bool { return lastCount(t, e, id) >= 50 })
	reached, when := lastCount(t, e, id), time.Now()
	wait.Until(t, "the container has printed more", func() bool { return lastCount(t, e, id) >= reached+50 })
	log, err := e.OpenLog(t.Context(), id, engine.LogOptions{Tail: -1, Since: when})
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(log)
	if err != nil {
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Error(err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	// A line comes every 10 ms, and stamps are 100 ms apart. The container was at reached or a
	// little later.
	if number, err := strconv.Atoi(first); err != nil || number < reached-25 || number > reached+25 {
		t.Errorf("the log since the container printed %d begins with %q", reached, first)
	}
	removeAll(t, e)
}

// TestLogWithoutNotifications: a container has used up what the kernel has to report changes with.
// The Engine opens, and a log can be followed.
func TestLogWithoutNotifications(t *testing.T) {
	// In a process of its own: what is used up on the host is missing to others.
	const inside = "OCI_TEST_WITHOUT_INOTIFY"
	if os.Getenv(inside) == "" {
		child := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestLogWithoutNotifications$", "-test.v")
		child.Env = append(os.Environ(), inside+"=1")
		output, err := child.CombinedOutput()
		if err != nil || !strings.Contains(string(output), "polling it five times a second") {
			t.Errorf("%v\n%s", err, output)
		}
		return
	}
	refuseInotify(t)
	s := newSite(t, "crun")
	e := s.mustOpen(t)
	defer closeEngine(t, e)
	id := start(t, e, probe(loadProbe(t, e), "count"))
	log, err := e.OpenLog(t.Context(), id, engine.LogOptions{Tail: -1, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(log)
	for want := range 50 {
		if !lines.Scan() || lines.Text() != strconv.Itoa(want) {
			t.Fatalf("line %d is %q, %v", want, lines.Text(), lines.Err())
		}
	}
	if err := log.Close(); err != nil {
		t.Error(err)
	}
	removeAll(t, e)
}

// refuseInotify makes the kernel refuse this process, and those that it starts, what inotify needs.
func refuseInotify(t *testing.T) {
	t.Helper()
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number of the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: unix.SYS_INOTIFY_INIT1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EMFILE)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&program))); errno != 0 {
		t.Fatal(errno)
	}
}

// TestLogFollowsRotation: who follows a log gets every line, also when the log's files change many
// times meanwhile.
func TestLogFollowsRotation(t *testing.T) {
	s := newSite(t, "crun")
	e := s.mustOpen(t)
	defer closeEngine(t, e)
	spec := probe(loadProbe(t, e), "count")
	spec.LogBytes = 128 // about 40 lines
	id := start(t, e, spec)
	log, err := e.OpenLog(t.Context(), id, engine.LogOptions{Tail: -1, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	lines := bufio.NewScanner(log)
	for want := range 200 {
		if !lines.Scan() || lines.Text() != strconv.Itoa(want) {
			t.Fatalf("line %d is %q, %v", want, lines.Text(), lines.Err())
		}
	}
	removeAll(t, e)
	if lines.Scan(); lines.Err() != nil && !strings.Contains(lines.Err().Error(), "no such container") {
		t.Errorf("after the removal: %v", lines.Err())
	}
}

// TestLogReportsGap: who follows a log that changes its files meanwhile gets every line up to an
// error, and the error when lines are missing.
func TestLogReportsGap(t *testing.T) {
	s := newSite(t, "crun")
	e := s.mustOpen(t)
	defer closeEngine(t, e)
	image := loadProbe(t, e)
	for changes, missing := range map[int]bool{2: false, 4: true} {
		t.Run(strconv.Itoa(changes), func(t *testing.T) {
			spec := probe(image, "count")
			spec.LogBytes = 128 // about 40 lines
			id := start(t, e, spec)
			log, err := e.OpenLog(t.Context(), id, engine.LogOptions{Tail: -1, Follow: true})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = log.Close() }()
			lines := bufio.NewScanner(log)
			if !lines.Scan() || lines.Text() != "0" {
				t.Fatalf("the log begins with %q, %v", lines.Text(), lines.Err())
			}
			path := filepath.Join(s.Directory, "containers", id, "log")
			last := fileNumber(path)
			for range changes {
				wait.Until(t, "the log has another file", func() bool { now := fileNumber(path); return now != last && now != 0 })
				last = fileNumber(path)
			}
			next := 1
			for ; next < 250 && lines.Scan(); next++ {
				if lines.Text() != strconv.Itoa(next) {
					t.Fatalf("after %d comes %q", next-1, lines.Text())
				}
			}
			if err := lines.Err(); missing && (err == nil || !strings.Contains(err.Error(), "bytes of the log are no longer kept")) {
				t.Errorf("after line %d: %v", next-1, err)
			}
			removeAll(t, e)
		})
	}
}

// fileNumber returns the number of the file's inode, 0 when there is none.
func fileNumber(path string) uint64 {
	var info unix.Stat_t
	if unix.Stat(path, &info) != nil {
		return 0
	}
	return info.Ino
}

// TestLogSinceAfterKill: a keeper that was killed while it changed the log's files leaves none with
// the times of another.
func TestLogSinceAfterKill(t *testing.T) {
	s := newSite(t, "crun")
	e := s.mustOpen(t)
	defer func() { closeEngine(t, e) }()
	spec := probe(loadProbe(t, e), "count")
	spec.LogBytes = 2000 // about 500 lines, five seconds: on a busy machine too the kill comes before a third file
	id := start(t, e, spec)
	path := filepath.Join(s.Directory, "containers", id, "log")
	wait.Until(t, "the log has a second file", func() bool { return fileNumber(path+".1") != 0 })
	first := lastCount(t, e, id)
	wait.Until(t, "the container has printed", func() bool { return lastCount(t, e, id) >= first+50 })
	reached, when := lastCount(t, e, id), time.Now()
	wait.Until(t, "the container has printed more", func() bool { return lastCount(t, e, id) >= reached+75 })
	closeEngine(t, e)
	killKeeper(t, s)
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	e = s.mustOpen(t)
	wait.Until(t, "the container has printed", func() bool { return lastCount(t, e, id) >= reached+100 })
	log, err := e.OpenLog(t.Context(), id, engine.LogOptions{Tail: -1, Since: when})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	lines := bufio.NewScanner(log)
	if !lines.Scan() {
		t.Fatal(lines.Err())
	}
	if number, err := strconv.Atoi(lines.Text()); err != nil || number < reached-25 || number > reached+25 {
		t.Errorf("the log since the container printed %d begins with %q", reached, lines.Text())
	}
	removeAll(t, e)
}

// TestLogIsBounded: a container that prints as much as it can fills two files.
func TestLogIsBounded(t *testing.T) {
	s := newSite(t, "crun")
	e := s.mustOpen(t)
	defer closeEngine(t, e)
	spec := probe(loadProbe(t, e), "lines", "200000")
	spec.LogBytes = 64 << 10
	id := start(t, e, spec)
	waitEnd(t, e, id)
	size := int64(0)
	for _, name := range []string{"log", "log.1"} {
		info, err := os.Stat(filepath.Join(s.Directory, "containers", id, name))
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	if size > 2*spec.LogBytes || size < spec.LogBytes {
		t.Errorf("the log has %d bytes, for a limit of %d", size, spec.LogBytes)
	}
	if got, err := e.Logs(t.Context(), id, 2); err != nil || got != "line 199999\nline 200000\n" {
		t.Errorf("the log ends with %q, %v", got, err)
	}
	removeAll(t, e)
}

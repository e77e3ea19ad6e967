package conformance

import (
	"net/http"
	"strings"
	"testing"

	"sandbox.internal/test/wait"
)

func testLogs(t *testing.T, b Backend) {
	s := Start(t, b, Plan{Program: true})
	// Bytes that are no text, both streams, a last line without its newline, and more on request.
	const first = "one\n\xff\x00\x01\x1b[31mred\ntwo\n"
	script := `printf 'one\n\377\000\001\033[31mred\n'; sleep 1; echo two >&2; until [ -e /tmp/go ]; do sleep 0.1; done; echo three; printf end; until [ -e /tmp/stop ]; do sleep 0.1; done; exit 3`
	id := s.Create(t, Request(s.Images.Busybox, "sh", "-c", script))
	path := "/v1/sandboxes/" + id + "/logs"
	logs := func(query string) string {
		t.Helper()
		got := s.Send(t, http.MethodGet, path+query, "")
		if got.Status != http.StatusOK ||
			got.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
			t.Fatalf("GET %s: %s %v", path+query, got, got.Header)
		}
		return got.Body
	}
	whole := s.FollowLog(t, path+"?follow=true") // from before the start
	s.Await(t, id, "Running")
	wait.Until(t, "the first lines are there", func() bool { return logs("") == first })
	for query, want := range map[string]string{
		"?tail=1": "two\n", "?tail=2": "\xff\x00\x01\x1b[31mred\ntwo\n", "?tail=100": first,
		"?tail=0":                     "",
		"?since=2000-01-01T00:00:00Z": first, "?since=2999-01-01T00:00:00Z": "",
		"?follow=false&tail=1": "two\n",
	} {
		if got := logs(query); got != want {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	s.Pause(t, id)
	if got := logs(""); got != first {
		t.Errorf("while Paused: %q", got)
	}
	later := s.FollowLog(t, path+"?follow=true&tail=0")
	s.Resume(t, id)
	inside := s.Enter(t, id)
	inside.Want(t, "touch /tmp/go", "")
	wait.Until(t, "the third line is there", func() bool { return complete(logs("")) == first+"three\n" })

	// A log that is followed when the service is killed can be requested again.
	whole.Until("three\n")
	later.Until("three\n")
	s.Kill()
	s.Boot(t)
	again := s.FollowLog(t, path+"?follow=true&tail=1")
	s.Enter(t, id).RunFatal(t, "touch /tmp/stop")
	const all = first + "three\nend"
	if got := strings.TrimPrefix(again.Rest(), "three\n"); got != "end" {
		t.Errorf("the log that was followed from its last line on: %q", got)
	}
	wait.Until(t, "it has ended", func() bool { return s.Get(t, id).Status.State == "Failed" })
	s.Gone(t, id)
	if got := logs(""); got != all {
		t.Errorf("after the end: %q", got)
	}
	if got := logs("?tail=2&follow=true"); got != "three\nend" {
		t.Errorf("the last two lines after the end: %q", got)
	}
	if got := complete(whole.Rest()); got != first+"three\n" {
		t.Errorf("the log that was followed from the start to the kill: %q", got)
	}
	if got := complete(later.Rest()); got != "three\n" {
		t.Errorf("the log that was followed from the pause on: %q", got)
	}
}

// complete returns the lines of a log that have ended. Docker takes a line without newline when its
// stream ends, other engines at once.
func complete(log string) string { return log[:strings.LastIndexByte(log, '\n')+1] }

package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	gen "sandbox.internal/clients/go/execd"
	"sandbox.internal/test/wait"
)

// by has a request come from a client with a key.
func by(key, client string) gen.RequestEditorFn {
	return func(_ context.Context, r *http.Request) error {
		r.Header.Set("X-EXECD-KEY-NAME", key)
		r.Header.Set("User-Agent", client)
		return nil
	}
}

// activity reads the list after a cursor.
func (d *daemon) activity(t *testing.T, after int64) gen.Activity {
	t.Helper()
	response, err := d.client.GetActivity(t.Context(), &gen.GetActivityParams{After: &after})
	must(t, err)
	defer response.Body.Close()
	var list gen.Activity
	must(t, json.NewDecoder(response.Body).Decode(&list))
	return list
}

// watchActivity follows the list.
func (d *daemon) watchActivity(t *testing.T, last *string) *stream {
	t.Helper()
	response, err := d.client.WatchActivity(t.Context(), &gen.WatchActivityParams{LastEventID: last})
	return d.stream(t, response, err)
}

// entry returns the next entry of a list that is followed, and the id of its event.
func (s *stream) entry() (entry gen.ActivityEntry, id string) {
	s.t.Helper()
	for {
		line, err := s.reader.ReadBytes('\n')
		must(s.t, err)
		if found, ok := bytes.CutPrefix(line, []byte("id: ")); ok {
			id = string(bytes.TrimSpace(found))
		}
		data, ok := bytes.CutPrefix(line, []byte("data: "))
		if !ok {
			continue
		}
		if err := s.contract.CheckEvent("ActivityEntry", data); err != nil {
			s.t.Error(err)
		}
		must(s.t, json.Unmarshal(data, &entry))
		return entry, id
	}
}

func (s *stream) wantEntry(want string) (entry gen.ActivityEntry, id string) {
	s.t.Helper()
	entry, id = s.entry()
	if got := describeEntry(entry); got != want {
		s.t.Errorf("the entry is %q, want %q", got, want)
	}
	return entry, id
}

func describeEntry(e gen.ActivityEntry) string {
	text := fmt.Sprintf("%s %s by %q with %q: %s", e.Kind, e.Text, e.Key, e.Client, e.State)
	if e.Exit != nil {
		text += fmt.Sprint(" ", *e.Exit)
	}
	return text
}

func TestActivityShowsCommandsAsTheyBeginAndEnd(t *testing.T) {
	t.Parallel()
	d := start(t)
	follow := d.watchActivity(t, nil)
	response, err := d.client.RunCommand(t.Context(), nil,
		gen.CommandRequest{Command: "read line; exit 3", Stdin: new(true)}, by("ci%20of%20%C3%A9", "test/1"))
	events := d.stream(t, response, err)
	began, first := follow.wantEntry(`command read line; exit 3 by "ci of é" with "test/1": running`)
	if began.Operation != response.Header.Get("X-Command-ID") || began.Ended != nil {
		t.Errorf("the entry is %+v", began)
	}
	input, err := d.client.WriteCommandStdinWithBody(t.Context(), began.Operation,
		&gen.WriteCommandStdinParams{End: new(true)}, "application/octet-stream", strings.NewReader("\n"))
	must(t, err)
	input.Body.Close()
	ended, last := follow.wantEntry(`command read line; exit 3 by "ci of é" with "test/1": failed 3`)
	if ended.ID != began.ID || ended.Ended == nil || ended.Error == "" {
		t.Errorf("the entry is %+v", ended)
	}
	events.response.Body.Close()
	// A stream goes on after an event; a list after its cursor.
	again, _ := d.watchActivity(t, &first).entry()
	if again.State != gen.ActivityEntryStateFailed {
		t.Errorf("after its first event the entry is %s", again.State)
	}
	list := d.activity(t, 0)
	if len(list.Entries) != 1 || fmt.Sprint(list.Cursor) != last {
		t.Errorf("the list is %+v, want one entry, and the cursor %s", list, last)
	}
	if rest := d.activity(t, list.Cursor); len(rest.Entries) != 0 {
		t.Errorf("after the cursor there are %+v", rest.Entries)
	}
}

func TestActivityShowsOperationsOnFiles(t *testing.T) {
	t.Parallel()
	d := start(t)
	path := filepath.Join(t.TempDir(), "a")
	must(t, os.WriteFile(path, []byte("text"), 0o600))
	d.ask(t, http.MethodGet, "/files/download?path="+path, "")
	d.ask(t, http.MethodPost, "/files/mv", fmt.Sprintf(`[{"src":%q,"dest":%q}]`, path, path+"b"))
	d.ask(t, http.MethodDelete, "/files?path="+path+"b", "")
	d.ask(t, http.MethodDelete, "/files?path="+path+"b", "") // which is gone
	var got []string
	for _, e := range d.activity(t, 0).Entries {
		e.Client = ""
		got = append(got, describeEntry(e))
	}
	want := strings.NewReplacer("PATH", path).Replace(`download PATH by "" with "": succeeded
move PATH -> PATHb by "" with "": succeeded
delete PATHb by "" with "": succeeded
delete PATHb by "" with "": failed`)
	if strings.Join(got, "\n") != want {
		t.Errorf("the list is\n%s\nwant\n%s", strings.Join(got, "\n"), want)
	}
}

func TestActivityShowsTerminals(t *testing.T) {
	t.Parallel()
	d := start(t)
	follow := d.watchActivity(t, nil)
	response, err := d.client.StartTerminal(t.Context(), nil,
		gen.TerminalRequest{Command: new("sh"), Args: []string{"-c", "exit 4"}}, by("ops", "page"))
	must(t, err)
	response.Body.Close()
	// The program may end before the entry is read.
	entry, _ := follow.entry()
	if entry.State == gen.ActivityEntryStateRunning {
		entry, _ = follow.entry()
	}
	if got := describeEntry(entry); !strings.HasSuffix(got, `sh -c exit 4 by "ops" with "page": failed 4`) {
		t.Errorf("the entry is %q", got)
	}
}

// TestKeyNameStaysOutOfPorts: a server in the sandbox does not see whose key a request came with.
func TestKeyNameStaysOutOfPorts(t *testing.T) {
	t.Parallel()
	d := start(t)
	seen := make(chan http.Header, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header }))
	t.Cleanup(server.Close)
	port := server.Listener.Addr().(*net.TCPAddr).Port
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		fmt.Sprintf("%s/proxy/%d/", d.url, port), nil)
	must(t, err)
	must(t, by("ci", "test")(t.Context(), request))
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: wait.Patience()}
	response, err := client.Do(request)
	must(t, err)
	response.Body.Close()
	if header := wait.For(t, "the request", seen); header.Get("X-EXECD-KEY-NAME") != "" || header.Get("User-Agent") != "test" {
		t.Errorf("the server got %v", header)
	}
}

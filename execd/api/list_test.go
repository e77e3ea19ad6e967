package api_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gen "sandbox.internal/clients/go/execd"
)

// commands lists commands; nil means all of them.
func (d *daemon) commands(t *testing.T, running *bool) []gen.CommandStatus {
	t.Helper()
	response, err := d.client.ListCommands(t.Context(), &gen.ListCommandsParams{Running: running})
	var list []gen.CommandStatus
	must(t, json.Unmarshal(body(t, response, err), &list))
	return list
}

func idsOf(list []gen.CommandStatus) []string {
	ids := make([]string, len(list))
	for i, c := range list {
		ids[i] = c.ID
	}
	return ids
}

func TestListOfCommands(t *testing.T) {
	t.Parallel()
	d := start(t)
	if list := d.commands(t, nil); list == nil || len(list) != 0 {
		t.Errorf("before the first command: %v", list)
	}
	dir := t.TempDir()
	long := "sleep 4711 # " + strings.Repeat("é", 1000)
	response, err := d.client.RunCommand(t.Context(), nil,
		gen.CommandRequest{Command: long, Cwd: &dir, Background: new(true)})
	var running gen.CommandAccepted
	must(t, json.Unmarshal(body(t, response, err), &running))
	ended := d.background(t, "exit 7")
	d.ended(t, ended)

	all := d.commands(t, nil)
	if got, want := idsOf(all), []string{running.ID, ended}; !slices.Equal(got, want) {
		t.Fatalf("the list has %q, want %q", got, want)
	}
	first, second := all[0], all[1]
	if !first.Running || first.Pid == nil || *first.Pid <= 0 || first.Cwd == nil || *first.Cwd != dir ||
		first.FinishedAt != nil || first.ExitCode != nil {
		t.Errorf("the one that runs is %+v", first)
	}
	if len(first.Content) > 1024 || !strings.HasPrefix(long, first.Content) || len(first.Content) < 1000 ||
		first.ContentTruncated == nil || !*first.ContentTruncated {
		t.Errorf("%d bytes of its command line, truncated %v", len(first.Content), first.ContentTruncated)
	}
	if whole := d.status(t, running.ID); whole.Content != long || whole.ContentTruncated != nil {
		t.Errorf("the status has %d bytes of the command line", len(whole.Content))
	}
	if second.Running || second.Pid != nil || second.ExitCode == nil || *second.ExitCode != 7 ||
		second.FinishedAt == nil || second.Content != "exit 7" || second.ContentTruncated != nil {
		t.Errorf("the one that has ended is %+v", second)
	}
	if got := idsOf(d.commands(t, new(true))); !slices.Equal(got, []string{running.ID}) {
		t.Errorf("%q run", got)
	}
	if got := idsOf(d.commands(t, new(false))); !slices.Equal(got, []string{ended}) {
		t.Errorf("%q have ended", got)
	}
	d.interrupt(t, running.ID)
	d.ended(t, running.ID)
	if list := d.commands(t, new(true)); len(list) != 0 {
		t.Errorf("%q run after the interrupt", idsOf(list))
	}
}

// TestListOfCommandsIsBounded: commands that run displace those that have ended, and the texts have
// a bound of their own.
func TestListOfCommandsIsBounded(t *testing.T) {
	t.Parallel()
	d := start(t)
	running := d.background(t, "sleep 4711")
	defer d.interrupt(t, running)
	long := "exit 0 # " + strings.Repeat("x", 2000)
	dir := filepath.Join(t.TempDir(), filepath.Join(slices.Repeat([]string{strings.Repeat("d", 250)}, 12)...))
	must(t, os.MkdirAll(dir, 0o700))
	const many = 300 // 4 KiB of text each
	var last gen.CommandAccepted
	for range many {
		response, err := d.client.RunCommand(t.Context(), nil,
			gen.CommandRequest{Command: long, Cwd: &dir, Background: new(true)})
		must(t, json.Unmarshal(body(t, response, err), &last))
	}
	d.ended(t, last.ID)
	list := d.commands(t, nil)
	text := 0
	for _, c := range list {
		text += len(c.Content) + len(*c.Cwd)
	}
	if len(list) >= many || text > 1<<20 || text < 1<<20-5000 {
		t.Errorf("%d commands with %d bytes", len(list), text)
	}
	if list[0].ID != running || list[len(list)-1].ID != last.ID {
		t.Error("the command that runs and the last one are not the ends of the list")
	}
}

package goclient_test

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sandbox "sandbox.internal/clients/go"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

func testLife(t *testing.T, client *sandbox.Client, box *sandbox.Sandbox) {
	ctx := limited(t)
	if info := box.Info(); info.Status.State != sandbox.Running || info.Metadata["name"] == "" {
		t.Errorf("%+v", info)
	}
	// Another client waits for what this one does.
	other, err := client.Connect(ctx, box.ID())
	check(t, err)
	paused := make(chan error, 1)
	go func() {
		_, err := other.Wait(ctx, sandbox.Paused)
		paused <- err
	}()
	check(t, box.Pause(ctx))
	check(t, wait.For(t, "the pause", paused))
	if err := box.Pause(ctx); !errors.Is(err, sandbox.ErrConflict) {
		t.Errorf("pausing it twice: %v", err)
	}
	check(t, box.Resume(ctx))
	result, err := box.Commands.Run(ctx, "echo again", nil)
	if err != nil || result.Stdout != "again\n" {
		t.Errorf("%+v, %v", result, err)
	}
	until, err := box.Renew(ctx, time.Hour)
	check(t, err)
	if left := time.Until(until); left < 59*time.Minute || left > 61*time.Minute {
		t.Errorf("the sandbox ends in %v", left)
	}
	metadata, err := box.UpdateMetadata(ctx,
		map[string]*string{"team": new("red"), "name": nil})
	check(t, err)
	if len(metadata) != 1 || metadata["team"] != "red" {
		t.Errorf("%v", metadata)
	}
	var ids []string
	for info, err := range client.List(ctx, &sandbox.ListOptions{States: []string{sandbox.Running},
		Metadata: map[string]string{"team": "red"}}) {
		check(t, err)
		ids = append(ids, info.ID)
	}
	if !slices.Equal(ids, []string{box.ID()}) {
		t.Errorf("listed %v", ids)
	}
	for name, events := range map[string]iter.Seq2[sandbox.Event, error]{
		"of it":  box.Events(ctx, &sandbox.EventOptions{UntilNow: true}),
		"of all": client.Events(ctx, &sandbox.EventOptions{FromStart: true, UntilNow: true}),
	} {
		var last sandbox.Event
		for event, err := range events {
			check(t, err)
			last = event
		}
		if last.Type != sandbox.EventMetadata || last.Metadata["team"] != "red" {
			t.Errorf("the events %s up to now end with %+v", name, last)
		}
	}
	check(t, box.Delete(ctx))
	check(t, box.Delete(ctx))
	if _, err := box.Wait(ctx, sandbox.Terminated); err != nil {
		t.Error(err)
	}
	var state *sandbox.StateError
	_, err = box.Wait(ctx, sandbox.Running)
	if !errors.As(err, &state) || state.State != sandbox.Terminated {
		t.Errorf("%v", err)
	}
	var states []string
	for event, err := range client.Events(ctx, &sandbox.EventOptions{FromStart: true}) {
		check(t, err)
		if event.SandboxID == nil || *event.SandboxID != box.ID() || event.Type != sandbox.EventState {
			continue
		}
		if states = append(states, *event.To); *event.To == sandbox.Terminated {
			break
		}
	}
	want := "Pending Running Pausing Paused Resuming Running Stopping Terminated"
	if got := strings.Join(states, " "); got != want {
		t.Errorf("states %s, want %s", got, want)
	}
}

func testCode(t *testing.T, box *sandbox.Sandbox) {
	ctx := limited(t)
	kernel, err := box.Code.CreateContext(ctx, "python")
	check(t, err)
	var live []sandbox.CodeResult
	ran, err := box.Code.Run(ctx,
		"import sys\nx = 41\nprint('out')\nprint('err', file=sys.stderr)\nx + 1",
		&sandbox.CodeOptions{Context: kernel.ID,
			OnResult: func(r sandbox.CodeResult) { live = append(live, r) }})
	check(t, err)
	if ran.Stdout != "out\n" || ran.Stderr != "err\n" || ran.Error != nil || ran.Count != 1 ||
		len(ran.Results) != 1 || ran.Results[0].Text() != "42" || len(live) != 1 {
		t.Errorf("%+v", ran)
	}
	ran, err = box.Code.Run(ctx, "from IPython.display import Image\n"+
		"Image(data=bytes.fromhex('89504e470d0a1a0a'), format='png')",
		&sandbox.CodeOptions{Context: kernel.ID})
	check(t, err)
	if len(ran.Results) != 1 || string(ran.Results[0].PNG()) != "\x89PNG\r\n\x1a\n" {
		t.Errorf("%+v", ran)
	}
	cell, err := box.Code.Start(ctx, "import os, time\nprint('begins')\n"+
		"while not os.path.exists('/tmp/go-on'): time.sleep(0.01)\nprint('ends')", nil)
	check(t, err)
	check(t, box.Files.Write(ctx, "/tmp/go-on", nil, nil))
	for range 2 { // from the beginning each time
		ran, err = box.Code.Connect(cell.ID).Wait(ctx, nil)
		check(t, err)
		if ran.Stdout != "begins\nends\n" || ran.ID != cell.ID {
			t.Errorf("a cell that was started: %+v", ran)
		}
	}
	cell, err = box.Code.Start(ctx, "import time; time.sleep(1000)", nil)
	check(t, err)
	check(t, cell.Interrupt(ctx))
	if ran, err = cell.Wait(ctx, nil); err != nil || ran.Error == nil || ran.Error.Name != "KeyboardInterrupt" {
		t.Errorf("a cell that was interrupted: %+v, %v", ran, err)
	}
	ran, err = box.Code.Run(ctx, "1/0", nil)
	check(t, err)
	if ran.Error == nil || ran.Error.Name != "ZeroDivisionError" || len(ran.Error.Traceback) == 0 {
		t.Errorf("%+v", ran)
	}
	found, err := box.Code.Contexts(ctx, "python")
	check(t, err)
	standard := slices.IndexFunc(found, func(c sandbox.CodeContext) bool {
		return c.Default != nil && *c.Default
	})
	if len(found) != 2 || standard < 0 || // that of the cell which named none
		found[1-standard].ID != kernel.ID || found[1-standard].Default != nil {
		t.Errorf("%+v", found)
	}
	if one, err := box.Code.Context(ctx, kernel.ID); err != nil || one.Language != "python" {
		t.Errorf("%+v, %v", one, err)
	}
	check(t, box.Code.Interrupt(ctx, kernel.ID)) // nothing runs
	check(t, box.Code.DeleteContext(ctx, kernel.ID))
	check(t, box.Code.DeleteContexts(ctx, "python"))
	_, err = box.Code.Run(ctx, "1", &sandbox.CodeOptions{Context: kernel.ID})
	if !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("%v", err)
	}
}

// testRestart follows a log and events while connections are cut and the service restarts.
func testRestart(t *testing.T, service *conformance.Service) {
	ctx := limited(t)
	// A stream's first connection is tried 5 times: fewer cuts cannot take all of them.
	proxy := newCutter(t, service.URL, 256, 1<<10, 4)
	client := dial(t, sandbox.Options{URL: proxy.url(), HTTPClient: wait.Client()})
	const script = "for i in $(seq 100); do echo line $i; sleep 0.03; done; echo end"
	box, err := dial(t, sandbox.Options{URL: service.URL}).Create(ctx,
		&sandbox.CreateOptions{Image: busybox, Entrypoint: []string{"sh", "-c", script}})
	check(t, err)
	box = connect(t, proxy, client, box.ID())
	followed := make(chan []string, 1)
	var once sync.Once
	opened := make(chan struct{})
	options := &sandbox.EventOptions{FromStart: true, OnOpen: func() { once.Do(func() { close(opened) }) }}
	go func() {
		var types []string
		for event, err := range box.Events(ctx, options) {
			if err != nil {
				t.Error(err)
				break
			}
			if types = append(types, event.Type); event.To != nil && *event.To == sandbox.Terminated {
				break
			}
		}
		followed <- types
	}()
	log, err := box.OpenLogs(ctx, &sandbox.LogOptions{Follow: true})
	check(t, err)
	defer log.Close()
	first := make([]byte, 10)
	_, err = io.ReadFull(log, first)
	check(t, err)
	select { // a stream outlives a restart once it was connected
	case <-opened:
	case types := <-followed:
		t.Fatalf("the stream of events ended before the restart: %v", types)
	case <-ctx.Done():
		t.Fatal("the stream of events was not connected before the restart")
	}
	service.Halt(t)
	service.Boot(t)
	proxy.lead(service.URL)
	rest, err := io.ReadAll(log)
	check(t, err)
	var want strings.Builder
	for i := range 100 {
		fmt.Fprintf(&want, "line %d\n", i+1)
	}
	if got := string(first) + string(rest); got != want.String()+"end\n" {
		t.Errorf("the log is %q", got)
	}
	if types := wait.For(t, "the events", followed); strings.Count(strings.Join(types, " "), sandbox.EventState) != 4 {
		t.Errorf("events %v", types)
	}
}

func testErrors(t *testing.T, client *sandbox.Client, url string) {
	ctx := limited(t)
	if _, err := client.Get(ctx, "none"); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("%v", err)
	}
	stranger := dial(t, sandbox.Options{URL: url, Key: "wrong"})
	if _, err := stranger.Get(ctx, "none"); !errors.Is(err, sandbox.ErrUnauthorized) {
		t.Errorf("%v", err)
	}
	brief := &sandbox.CreateOptions{Image: busybox, Timeout: time.Second}
	if _, err := client.Create(ctx, brief); !errors.Is(err, sandbox.ErrBadRequest) {
		t.Errorf("%v", err)
	}
	// One that ends by itself: the cause is in the error, and its log can be read.
	box, err := client.Create(ctx, &sandbox.CreateOptions{Image: busybox,
		Entrypoint: []string{"sh", "-c", "echo the cause; exit 3"}})
	var state *sandbox.StateError
	if err == nil { // it was Running for a moment
		_, err = box.Wait(ctx, sandbox.Paused)
	}
	if !errors.As(err, &state) || state.Reason != "ENTRYPOINT_EXITED" {
		t.Fatalf("%v", err)
	}
	log, err := box.OpenLogs(ctx, &sandbox.LogOptions{Follow: true})
	check(t, err)
	defer log.Close()
	if text, err := io.ReadAll(log); err != nil || string(text) != "the cause\n" {
		t.Errorf("%q, %v", text, err)
	}
	for _, bad := range []string{"ftp://x", "://", "no url"} {
		if _, err := sandbox.New(&sandbox.Options{URL: bad}); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

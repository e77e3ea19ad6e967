package goclient_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	sandbox "sandbox.internal/clients/go"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// TestClient uses a real service with real sandboxes.
func TestClient(t *testing.T) {
	service := start(t, conformance.Plan{})
	client := dial(t, sandbox.Options{URL: service.URL})
	var box *sandbox.Sandbox
	t.Run("create", func(t *testing.T) { box = create(t, client, busybox) })
	if box == nil {
		t.FailNow()
	}
	t.Run("in one sandbox", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T, *sandbox.Sandbox){
			"commands": testCommands, "background": testBackground, "files": testFiles,
			"download": testDownload, "watch": testWatch, "terminal": testTerminal,
			"network": testNetwork, "metrics": testMetrics, "endpoints": testEndpoints,
			"cancel": testCancel,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, box)
			})
		}
		t.Run("stdin", func(t *testing.T) { t.Parallel(); testStdin(t, service.URL, box) })
		t.Run("cuts", func(t *testing.T) { // the time that it takes is its own
			testCuts(t, service.URL, box)
		})
	})
	t.Run("out of memory", func(t *testing.T) { testOutOfMemory(t, client) })
	t.Run("a cell out of memory", func(t *testing.T) { testCellOutOfMemory(t, client) })
	t.Run("life", func(t *testing.T) { testLife(t, client, box) })
	t.Run("code", func(t *testing.T) { testCode(t, create(t, client, python)) })
	t.Run("errors", func(t *testing.T) { testErrors(t, client, service.URL) })
	t.Run("examples", func(t *testing.T) { testExamples(t, service.URL) })
	t.Run("restart", func(t *testing.T) { testRestart(t, service) })
}

// testOutOfMemory: a command that the kernel has ended says why, wherever its end is read.
func testOutOfMemory(t *testing.T, client *sandbox.Client) {
	ctx := limited(t)
	box, err := client.Create(ctx, &sandbox.CreateOptions{Image: busybox, Memory: "64Mi"})
	check(t, err)
	defer func() { check(t, box.Delete(ctx)) }()
	result, err := box.Commands.Run(ctx, `awk 'BEGIN { x = "x"; while (1) x = x x }'`, nil)
	check(t, err)
	if !result.OOMKilled() || result.Err() == nil || !strings.Contains(result.Err().Error(), "OOM_KILLED") {
		t.Errorf("the result is %+v, its error %v", result, result.Err())
	}
	command, err := box.Commands.Connect(ctx, result.ID)
	check(t, err)
	status, err := command.Status(ctx)
	check(t, err)
	list, err := box.Commands.List(ctx, nil)
	check(t, err)
	for _, status := range append(list, status) {
		if status.Reason == nil || *status.Reason != sandbox.OOMKilled {
			t.Errorf("the status is %+v", status)
		}
	}
	if result, err := box.Commands.Run(ctx, "kill -9 $$", nil); err != nil || result.OOMKilled() {
		t.Errorf("killed by itself: %+v, %v", result, err)
	}
}

// testCellOutOfMemory: the cell says why its context is gone, and the next one works.
func testCellOutOfMemory(t *testing.T, client *sandbox.Client) {
	ctx := limited(t)
	box, err := client.Create(ctx, &sandbox.CreateOptions{Image: python, Memory: "512Mi"})
	check(t, err)
	defer func() { check(t, box.Delete(ctx)) }()
	died, err := box.Code.Run(ctx, "x = bytearray(2 << 30)", nil)
	check(t, err)
	if !died.OOMKilled() || died.Error == nil || died.Error.Name != "KernelDied" || !strings.Contains(died.Error.Error(), "OOM_KILLED") {
		t.Errorf("the cell is %+v, its error %v", died, died.Error)
	}
	next, err := box.Code.Run(ctx, "6 * 7", nil)
	check(t, err)
	if next.OOMKilled() || next.Error != nil || len(next.Results) != 1 || next.Results[0].Text() != "42" {
		t.Errorf("the next cell is %+v, its error %v", next, next.Error)
	}
}

func testFiles(t *testing.T, box *sandbox.Sandbox) {
	ctx, files := limited(t), box.Files
	check(t, files.WriteAll(ctx,
		sandbox.FileContent{Path: "/w/a.txt", Data: []byte("alpha"),
			Options: &sandbox.WriteOptions{Mode: "0640"}},
		sandbox.FileContent{Path: "/w/b/c.txt", Data: nil}))
	check(t, files.WriteFrom(ctx, "/w/stream", strings.NewReader("from a stream"), nil))
	infos, err := files.Info(ctx, "/w/a.txt", "/w/b")
	check(t, err)
	if a := infos["/w/a.txt"]; a.Mode != 640 || a.Size != 5 || infos["/w/b"].Type != "directory" {
		t.Errorf("%+v", infos)
	}
	check(t, files.Replace(ctx, map[string]sandbox.Replacement{"/w/a.txt": {Old: "al", New: "AL"}}))
	if text, err := files.ReadText(ctx, "/w/a.txt"); err != nil || text != "ALpha" {
		t.Errorf("%q, %v", text, err)
	}
	if data, err := files.Read(ctx, "/w/b/c.txt"); err != nil || len(data) != 0 {
		t.Errorf("%q, %v", data, err)
	}
	check(t, files.MakeDirectory(ctx, "/w/d/e", &sandbox.WriteOptions{Mode: "700"}))
	check(t, files.Move(ctx, sandbox.Move{Src: "/w/a.txt", Dest: "/w/d/e/a.txt"}))
	check(t, files.SetPermissions(ctx,
		map[string]sandbox.Permission{"/w/stream": {Mode: "600"}}))
	found, err := files.Search(ctx, "/w", "*.txt")
	check(t, err)
	if len(found) != 2 || found[1].Path != "/w/d/e/a.txt" {
		t.Errorf("%+v", found)
	}
	listed, err := files.List(ctx, "/w", 1)
	check(t, err)
	if len(listed) != 3 {
		t.Errorf("%+v", listed)
	}
	check(t, files.Delete(ctx, "/w/stream"))
	check(t, files.DeleteDirectory(ctx, "/w"))
	if _, err := files.Read(ctx, "/w/stream"); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("a file that is gone: %v", err)
	}
	var failure *sandbox.Error
	if _, err := files.Read(ctx, "/"); !errors.As(err, &failure) || failure.Code == "" ||
		failure.Message == "" || failure.RequestID == "" {
		t.Errorf("%v", err)
	}
}

// testDownload: a download that is cut goes on where it was.
func testDownload(t *testing.T, box *sandbox.Sandbox) {
	ctx := limited(t)
	want := noise(7, 3<<20)
	check(t, box.Files.Write(ctx, "/big", want, nil))
	proxy := newCutter(t, boxURL(box), 64<<10, 1<<20, 0)
	client := dial(t, sandbox.Options{URL: proxy.url(), HTTPClient: wait.Client()})
	far, err := client.Connect(ctx, box.ID())
	check(t, err)
	got, err := far.Files.Read(ctx, "/big")
	check(t, err)
	if !bytes.Equal(got, want) || proxy.cuts.Load() == 0 {
		t.Errorf("%d bytes after %d cuts, equal: %v", len(got), proxy.cuts.Load(),
			bytes.Equal(got, want))
	}
	part, err := box.Files.Open(ctx, "/big", &sandbox.ReadOptions{Offset: 1000, Length: 10})
	check(t, err)
	defer part.Close()
	if got, err := io.ReadAll(part); err != nil || !bytes.Equal(got, want[1000:1010]) {
		t.Errorf("a range: %x, %v", got, err)
	}
	tail, err := box.Files.Open(ctx, "/big", &sandbox.ReadOptions{Offset: -5})
	check(t, err)
	defer tail.Close()
	if got, err := io.ReadAll(tail); err != nil || !bytes.Equal(got, want[len(want)-5:]) {
		t.Errorf("the end: %x, %v", got, err)
	}
}

func testWatch(t *testing.T, box *sandbox.Sandbox) {
	ctx := limited(t)
	check(t, box.Files.MakeDirectory(ctx, "/watched", nil))
	for event, err := range box.Files.Watch(ctx, "/watched", true) {
		check(t, err)
		if event.Type == sandbox.FileEventReady {
			check(t, box.Files.WriteText(ctx, "/watched/new", "x", nil))
		}
		if event.Type == sandbox.FileEventCreate && strings.HasSuffix(*event.Path, "/new") {
			return
		}
	}
	t.Error("the watch ended")
}

func testNetwork(t *testing.T, box *sandbox.Sandbox) {
	ctx := limited(t)
	policy, err := box.Network.SetPolicy(ctx,
		sandbox.NetworkPolicy{DefaultAction: new(sandbox.Deny)})
	check(t, err)
	if *policy.DefaultAction != sandbox.Deny {
		t.Errorf("%+v", policy)
	}
	policy, err = box.Network.Allow(ctx, "example.com", "192.0.2.0/24")
	check(t, err)
	if len(policy.Egress) != 2 {
		t.Errorf("%+v", policy)
	}
	policy, err = box.Network.Forget(ctx, "example.com")
	check(t, err)
	if len(policy.Egress) != 1 {
		t.Errorf("%+v", policy)
	}
	_, err = box.Commands.Run(ctx, "nc -w 1 198.51.100.1 80 </dev/null", nil)
	check(t, err)
	for decision, err := range box.Network.WatchDecisions(ctx) {
		check(t, err)
		if decision.Target == "198.51.100.1" {
			break
		}
	}
	decisions, err := box.Network.Decisions(ctx)
	check(t, err)
	if len(decisions) == 0 || decisions[0].Action != sandbox.Deny {
		t.Errorf("%+v", decisions)
	}
	if _, err := box.Network.Propose(ctx); err != nil {
		t.Error(err)
	}
	if now, err := box.Network.Policy(ctx); err != nil || len(now.Egress) != 1 {
		t.Errorf("%+v, %v", now, err)
	}
}

func testMetrics(t *testing.T, box *sandbox.Sandbox) {
	ctx := limited(t)
	kept, err := box.KeepAwake(ctx, sandbox.KeepAwakeOptions{For: 59*time.Second + 1, WakeAfter: time.Hour, Name: "test"})
	check(t, err)
	held, err := box.Holds(ctx)
	check(t, err)
	at := slices.IndexFunc(held.Holds, func(hold sandbox.Hold) bool { return hold.ID == "test" })
	if at < 0 || held.WakeAt == nil || !held.WakeAt.Equal(*kept.WakeAt) || kept.Until.Sub(held.Holds[at].Since).Round(time.Second) != time.Minute {
		t.Errorf("kept awake: %+v; listed are %+v", kept, held)
	}
	metrics, err := box.Metrics(ctx)
	check(t, err)
	if metrics.MemTotalMib != 512 {
		t.Errorf("%+v", metrics)
	}
	for metrics, err := range box.WatchMetrics(ctx) {
		check(t, err)
		if metrics.CPUCount > 0 {
			return
		}
	}
}

func testEndpoints(t *testing.T, box *sandbox.Sandbox) {
	ctx := limited(t)
	check(t, box.Files.WriteText(ctx, "/www/index.html", "a page", nil))
	server, err := box.Commands.Start(ctx, "busybox httpd -f -p 8000 -h /www", nil)
	check(t, err)
	signed, err := box.SignedEndpoint(ctx, 8000, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	direct, err := box.Endpoint(ctx, 8000)
	check(t, err)
	wait.Until(t, "both URLs show the page", func() bool {
		return page(t, signed.URL, nil) == "a page" && page(t, direct.URL, direct.Headers) == "a page"
	})
	if !strings.HasSuffix(box.ProxyURL(8000), box.ID()+"/proxy/8000") {
		t.Error(box.ProxyURL(8000))
	}
	check(t, server.Interrupt(ctx))
}

// page returns what a URL shows, or nothing.
func page(t *testing.T, url string, headers map[string]string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	check(t, err)
	for name, value := range headers {
		request.Header.Set(name, value)
	}
	response, err := wait.Client().Do(request)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	data, _ := io.ReadAll(response.Body)
	return string(data)
}

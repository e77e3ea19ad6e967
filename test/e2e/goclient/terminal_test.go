package goclient_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	sandbox "sandbox.internal/clients/go"
	"sandbox.internal/test/wait"
)

// testTerminal types into a shell, through connections that are cut.
func testTerminal(t *testing.T, box *sandbox.Sandbox) {
	ctx := limited(t)
	id, err := box.Terminals.Create(ctx, &sandbox.TerminalOptions{Command: "sh", Rows: 24, Cols: 80})
	check(t, err)
	proxy := newCutter(t, boxURL(box), 1<<10, 2<<10, 3) // its last connection shows all
	client := dial(t, sandbox.Options{URL: proxy.url(), HTTPClient: wait.Client()})
	far, err := client.Connect(ctx, box.ID())
	check(t, err)
	terminal, err := far.Terminals.Attach(ctx, id)
	check(t, err)
	defer terminal.Close()
	check(t, terminal.Resize(ctx, 30, 100))
	wait.Until(t, "the terminal has its new size", func() bool {
		list, err := box.Terminals.List(ctx)
		check(t, err)
		return slices.ContainsFunc(list, func(s sandbox.TerminalInfo) bool { return s.ID == id && s.Rows == 30 })
	})
	near, err := box.Terminals.Attach(ctx, id)
	check(t, err)
	defer near.Close()
	_, err = near.Write([]byte("stty size; seq -s, 1 300; seq -s, 301 1200; exit 7\n"))
	check(t, err)
	var screen bytes.Buffer
	for {
		event, err := terminal.Next(ctx)
		check(t, err)
		if event.Replay {
			screen.Reset()
		}
		screen.Write(event.Data)
		if event.Exited {
			if event.ExitCode == nil || *event.ExitCode != 7 {
				t.Errorf("%+v", event)
			}
			break
		}
	}
	if text := screen.String(); strings.Count(text, ",1199,1200") != 1 ||
		!strings.Contains(text, "30 100") || !strings.Contains(text, "\n1,2,3,") {
		t.Errorf("the screen shows %q", text)
	}
	if proxy.cuts.Load() == 0 {
		t.Error("no connection was cut")
	}
	if _, err := terminal.Next(ctx); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
	other, err := box.Terminals.Create(ctx, &sandbox.TerminalOptions{Command: "id",
		Args: []string{"-u"}, UID: new(int64(1000))})
	check(t, err)
	if text, code := untilExit(t, ctx, box, other); text != "1000\r\n" || code == nil || *code != 0 {
		t.Errorf("as another user: %q, exit code %v", text, code)
	}
	short, err := box.Terminals.Create(ctx, &sandbox.TerminalOptions{Command: "sleep",
		Args: []string{"1000"}, Timeout: 500 * time.Millisecond})
	check(t, err)
	if text, code := untilExit(t, ctx, box, short); text != "" || code != nil {
		t.Errorf("after a timeout: %q, exit code %v", text, code)
	}
	list, err := box.Terminals.List(ctx)
	check(t, err)
	if len(list) != 3 || list[0].Running || list[0].ID != id {
		t.Errorf("%+v", list)
	}
	check(t, box.Terminals.Delete(ctx, id))
}

// untilExit attaches to a terminal and returns what it prints until its program ends, and the exit
// code.
func untilExit(t *testing.T, ctx context.Context, box *sandbox.Sandbox, terminal string) (string, *int) {
	t.Helper()
	viewer, err := box.Terminals.Attach(ctx, terminal)
	check(t, err)
	defer viewer.Close()
	var screen bytes.Buffer
	for {
		event, err := viewer.Next(ctx)
		check(t, err)
		screen.Write(event.Data)
		if event.Exited {
			return screen.String(), event.ExitCode
		}
	}
}

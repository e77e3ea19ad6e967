package browser_test

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// rendering is how long a page may take until it shows what a test waits for. Browsers are slow on
// a busy machine.
const rendering = 2 * time.Minute

// tab is a page of a real browser, and what happened in it.
type tab struct {
	ctx  context.Context
	home string // the origin that it may talk to

	mu       sync.Mutex
	troubles []string // errors of the console and uncaught exceptions
	requests []*network.Request
}

// browse opens a tab in a browser of its own, which has nothing from before and is gone after the
// test.
func browse(t *testing.T, home string) *tab {
	t.Helper()
	flags := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(os.Args[0]), chromedp.Env(browserVariable+"="+browserPath(t)), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.UserDataDir(t.TempDir()),
		chromedp.Env("TMPDIR="+t.TempDir()), // one that is killed leaves directories there
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-dev-shm-usage", true),
		chromedp.WindowSize(1280, 1000), chromedp.WSURLReadTimeout(rendering),
	)
	allocated, release := chromedp.NewExecAllocator(t.Context(), flags...)
	b := &tab{home: home}
	ctx, closeTab := chromedp.NewContext(allocated, chromedp.WithListener(b.notice))
	b.ctx = ctx
	t.Cleanup(func() {
		// The browser has to be gone before its directory is removed. One that crashed is gone
		// already.
		_ = chromedp.Cancel(ctx)
		closeTab()
		release()
	})
	// The browser lives as long as the context of this call, so it must have no timeout of its own.
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("start the browser: %v", err)
	}
	b.do(t, "open a tab", command(network.Enable, network.EnableParams{}),
		command(log.Enable, cdp.Empty{}))
	return b
}

func (b *tab) notice(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	trouble := func(format string, args ...any) {
		b.troubles = append(b.troubles,
			fmt.Sprintf(format, args...))
	}
	switch event := event.(type) {
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, event.Request)
		if at, err := url.Parse(event.Request.URL); err != nil || at.Host != "" &&
			"http://"+at.Host != b.home {
			trouble("a request to another origin: %s", event.Request.URL)
		}
	case *runtime.EventExceptionThrown:
		trouble("an exception: %s", exceptionText(event.ExceptionDetails))
	case *runtime.EventConsoleAPICalled:
		if event.Type == runtime.ConsoleAPICalledTypeError ||
			event.Type == runtime.ConsoleAPICalledTypeAssert {
			for _, argument := range event.Args {
				trouble("console: %s %s", argument.Value, argument.Description)
			}
		}
	case *log.EventEntryAdded:
		if event.Entry.Level == log.EntryLevelError {
			trouble("log: %s %s", event.Entry.Text, event.Entry.URL)
		}
	}
}

// take returns the errors so far and clears them.
func (b *tab) take() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := b.troubles
	b.troubles = nil
	return taken
}

// unexpected reports the errors so far, and clears them, but for those that have one of the words:
// Chromium itself reports what the service refuses.
func (b *tab) unexpected(t *testing.T, expected ...string) {
	t.Helper()
	for _, trouble := range without(b.take(), expected) {
		t.Error(trouble)
	}
}

func without(troubles, words []string) []string {
	return slices.DeleteFunc(troubles, func(trouble string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(trouble, w) })
	})
}

// sent returns the last request to a URL that contains the words.
func (b *tab) sent(words string) *network.Request {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := len(b.requests) - 1; i >= 0; i-- {
		if strings.Contains(b.requests[i].URL, words) {
			return b.requests[i]
		}
	}
	return nil
}

// act runs an action in a page.
func act[T any](t *testing.T, b *tab, what string, action chromedp.Action[T]) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, rendering)
	defer cancel()
	result, err := chromedp.Run(ctx, action)
	if err != nil {
		t.Fatalf("%s: %v\n%s", what, err, b.failed(t))
	}
	return result
}

// failed describes the page of a test that fails, and keeps a picture of it.
func (b *tab) failed(t *testing.T) string {
	t.Helper()
	b.picture(t, "failed")
	ctx, cancel := context.WithTimeout(b.ctx, time.Second)
	defer cancel()
	const shown = "document.body.innerText + '\\nfocus: ' + document.activeElement.outerHTML.slice(0, 200)"
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string](shown))
	return fmt.Sprintf("troubles: %q\npage (%v):\n%.2000s", b.take(), err, text)
}

// command is a command of the DevTools protocol as an action.
func command[P, R any](c cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, c, params)
		return err
	})
}

func (b *tab) do(t *testing.T, what string, actions ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	for _, action := range actions {
		act(t, b, what, action)
	}
}

// evaluate returns what an expression gives in the page.
func evaluate[T any](t *testing.T, b *tab, expression string) T {
	t.Helper()
	return act(t, b, expression, chromedp.Evaluate[T](expression))
}

// until waits until an expression is true in the page.
func (b *tab) until(t *testing.T, expression string) {
	t.Helper()
	act(t, b, "until "+expression,
		chromedp.Poll[bool](expression, chromedp.WithPollingTimeout(rendering),
			chromedp.WithPollingInterval(100*time.Millisecond)))
}

// click clicks the one element of a CSS selector, as soon as it is visible.
func (b *tab) click(t *testing.T, selector string) {
	t.Helper()
	// A dialog is in the document before it is open, and what has no layout cannot be scrolled to.
	b.do(t, "click "+selector, chromedp.WaitVisible(chromedp.CSS(selector)),
		chromedp.ScrollIntoView(chromedp.CSS(selector)),
		chromedp.Click(chromedp.CSS(selector), chromedp.NodeVisible))
}

// enter puts a text into an input field in the way in which a user does.
func (b *tab) enter(t *testing.T, selector, text string) {
	t.Helper()
	b.do(t, "type into "+selector, chromedp.WaitVisible(chromedp.CSS(selector)),
		chromedp.SendKeys(chromedp.CSS(selector), text))
}

// picture keeps a screenshot of the page; `go test -artifacts` says where.
func (b *tab) picture(t *testing.T, name string) {
	t.Helper()
	image, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		t.Logf("no picture %s: %v", name, err)
		return
	}
	if err := os.WriteFile(filepath.Join(t.ArtifactDir(), name+".png"), image, 0o600); err != nil {
		t.Error(err)
	}
}

// stored returns what the page has written where it would outlive it: storages and cookies.
func (b *tab) stored(t *testing.T) string {
	t.Helper()
	return evaluate[string](t, b,
		`JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])`)
}

// headersOf returns the headers of a request by their names in lower case.
func headersOf(request *network.Request) map[string]string {
	headers := map[string]string{}
	for name, value := range maps.All(request.Headers) {
		headers[strings.ToLower(name)] = fmt.Sprint(value)
	}
	return headers
}

func exceptionText(details *runtime.ExceptionDetails) string {
	if details.Exception == nil {
		return details.Text
	}
	return details.Text + " " + details.Exception.Description
}

package browser_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"

	"sandbox.internal/test/e2e/conformance"
)

// button is the button of the panel with a text.
func button(text string) string {
	return fmt.Sprintf(
		"[...document.querySelectorAll('.panel button')].find((e) => e.innerText === %q)", text)
}

// press clicks the button of the panel with a text, as soon as it is there.
func (b *tab) press(t *testing.T, text string) {
	t.Helper()
	b.until(t, button(text)+"?.disabled === false")
	b.run(t, button(text)+".click()")
}

const editor = "document.querySelector('textarea.editor')"

// holds is true once the editor shows a text.
func holds(text string) string { return fmt.Sprintf("%s?.value === %q", editor, text) }

// TestConsoleFiles: what the page does with files of a sandbox destroys none of them, and none of
// them does something to the page.
func TestConsoleFiles(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	id := s.Running(t, conformance.Request(baseImage, "sleep", "1000"))
	box := s.Enter(t, id)
	const drawing = `<svg xmlns="http://www.w3.org/2000/svg" width="7" height="7">
<script>document.documentElement.setAttribute('class', 'ran')</script></svg>`
	box.Upload(t, "/srv/drawing.svg", drawing)
	box.Upload(t, "/srv/mixed.txt", "one\r\ntwo\n")
	box.Upload(t, "/srv/windows.txt", "one\r\ntwo\r\n")
	b := console(t, s, s.URL, conformance.AdminKey)
	b.visit(t, "#/sandboxes/"+id+"/files", there("table.files"))
	b.press(t, "srv/")
	const focus = "document.activeElement"

	t.Run("a drawing has no origin", func(t *testing.T) {
		b.press(t, "drawing.svg")
		b.until(t, "document.querySelector('img.picture')?.naturalWidth === 7")
		source := evaluate[string](t, b, "document.querySelector('img.picture').src")
		if !strings.HasPrefix(source, "data:image/svg+xml") {
			t.Fatalf("the source of the picture is %.40q", source)
		}
		opened := b.second(t)
		opened.do(t, "open the drawing", chromedp.Navigate(source))
		if origin := evaluate[string](t, opened, "self.origin"); origin != "null" {
			t.Errorf("the drawing as a page has the origin %s", origin)
		}
		b.press(t, "Back")
		b.until(t, focus+".innerText === 'drawing.svg'")
	})

	t.Run("line ends are kept", func(t *testing.T) {
		b.press(t, "windows.txt")
		b.until(t, holds("one\ntwo\n"))
		b.until(t, focus+" === "+editor)
		b.enter(t, "textarea.editor", "three\r")
		b.until(t, says("not saved"))
		b.press(t, "Save")
		b.until(t, says("17 B"))
		box.Want(t, "cat /srv/windows.txt", "one\r\ntwo\r\nthree\r\n")
		b.press(t, "Back")
		b.press(t, "mixed.txt")
		b.until(t, says("end in more than one way"))
		if !evaluate[bool](t, b, editor+".readOnly") {
			t.Error("a file whose lines end in more than one way can be changed")
		}
		b.press(t, "Back")
	})

	t.Run("a new file is none that exists", func(t *testing.T) {
		b.press(t, "New file…")
		b.enter(t, "#name", "mixed.txt\r")
		b.until(t, says("/srv/mixed.txt exists already"))
		box.Want(t, "cat /srv/mixed.txt", "one\r\ntwo\n")
		b.click(t, "dialog [type=button]")
		b.until(t, "!"+there("dialog"))
	})

	t.Run("an upload asks before it overwrites", func(t *testing.T) {
		b.run(t, `(() => {
			const list = new DataTransfer();
			list.items.add(new File(['new'], 'mixed.txt'));
			list.items.add(new File(['other'], 'other.txt'));
			const chooser = document.querySelector('.panel input[type=file]');
			chooser.files = list.files;
			chooser.dispatchEvent(new Event('change', { bubbles: true }));
		})()`)
		b.until(t, there("dialog[open]")+" && "+says("Overwrite mixed.txt?"))
		box.Want(t, "cat /srv/mixed.txt; ls /srv/other.txt 2>&1 | wc -l", "one\r\ntwo\n1\n")
		b.picture(t, "overwrite")
		b.click(t, "dialog .danger")
		b.until(t, button("other.txt")+" !== undefined")
		box.Want(t, "cat /srv/mixed.txt /srv/other.txt", "newother")
	})

	t.Run("a directory is not uploaded", func(t *testing.T) {
		directory := t.TempDir()
		at := evaluate[float64](t, b, "document.querySelector('.drop').getBoundingClientRect().top + 9")
		for _, kind := range []input.DispatchDragEventType{
			input.DispatchDragEventTypeDragEnter,
			input.DispatchDragEventTypeDragOver,
			input.DispatchDragEventTypeDrop,
		} {
			b.do(t, "drop a directory", command(input.DispatchDragEvent, input.DispatchDragEventParams{
				Type: kind, X: 40, Y: at,
				Data: &input.DragData{Items: []*input.DragDataItem{}, Files: []string{directory},
					DragOperationsMask: 1},
			}))
		}
		b.until(t, says("folders cannot be uploaded"))
	})
	// The page asks whether a new file is there.
	b.unexpected(t, "404 (Not Found) "+s.URL+"/console/api/v1/sandboxes/"+id+"/proxy/44772/files/info?")
}

// TestConsoleDrafts: what was typed into a file and not saved outlives its tab of the page, a
// pause and the end of the session, and does not overwrite what was written meanwhile.
func TestConsoleDrafts(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	id := s.Running(t, conformance.Request(baseImage, "sleep", "1000"))
	box := s.Enter(t, id)
	box.Upload(t, "/srv/note.txt", "kept")
	b := console(t, s, s.URL, conformance.AdminKey)
	at := "#/sandboxes/" + id
	mayLeave := func() bool {
		return evaluate[bool](t, b, "dispatchEvent(new Event('beforeunload', { cancelable: true }))")
	}
	b.visit(t, at+"/files", there("table.files"))
	b.press(t, "srv/")
	b.press(t, "note.txt")
	b.until(t, holds("kept"))
	if !mayLeave() {
		t.Error("the page cannot be left although nothing was typed")
	}
	b.enter(t, "textarea.editor", " and typed")
	b.until(t, says("not saved"))
	if mayLeave() {
		t.Error("the page can be left although something is not saved")
	}
	const text = "kept and typed"
	shows := "(" + holds(text) + " && !" + editor + ".readOnly)"

	b.visit(t, at+"/events", there(".timeline"))
	b.visit(t, at+"/files", shows)
	s.Pause(t, id)
	b.until(t, there(".head [data-state=Paused]"))
	b.until(t, holds(text)+" && "+editor+".readOnly") // it can be copied
	b.picture(t, "draft-paused")
	s.Resume(t, id)
	b.until(t, shows)

	b.run(t, `fetch('/console/session', {method: 'DELETE', headers: {
		'X-Sandbox-Console': localStorage.getItem('sandbox-console-token')}})`)
	b.until(t, says("The session has ended; sign in again."))
	b.picture(t, "ended")
	b.enter(t, "#key", conformance.AdminKey+"\r")
	b.until(t, shows)

	box.Upload(t, "/srv/note.txt", "written meanwhile")
	b.visit(t, at+"/events", there(".timeline"))
	b.visit(t, at+"/files", shows)
	b.press(t, "Save")
	b.until(t, says("The file was changed in the sandbox since it was opened"))
	box.Want(t, "cat /srv/note.txt", "written meanwhile")
	b.press(t, "Save")
	b.until(t, "!"+says("not saved"))
	box.Want(t, "cat /srv/note.txt", text)
	if !mayLeave() {
		t.Error("the page cannot be left although everything is saved")
	}

	b.enter(t, "textarea.editor", "!")
	b.press(t, "Back")
	b.until(t, there("dialog[open]"))
	b.click(t, "dialog .danger")
	b.until(t, there("table.files"))
	if !mayLeave() {
		t.Error("the page cannot be left although what was typed was given up")
	}
	box.Want(t, "cat /srv/note.txt", text)
}

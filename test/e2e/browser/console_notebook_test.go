package browser_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"sandbox.internal/test/e2e/conformance"
)

// TestConsoleQueuesCells: the cells of a notebook that wait for others take up no connections, so
// that the running one can be interrupted.
func TestConsoleQueuesCells(t *testing.T) {
	t.Parallel()
	s := startWithPython(t, conformance.Plan{})
	id := s.Running(t, conformance.Request(pythonImage, "sleep", "1000"))
	b := console(t, s, s.URL, conformance.AdminKey)
	b.visit(t, "#/sandboxes/"+id+"/notebook", there("article textarea"))
	status := func(cell int, is string) string {
		return fmt.Sprintf("document.querySelectorAll('article')[%d]?.dataset.status === %q", cell, is)
	}
	const last = 6
	for i := range last + 1 {
		code := "import time; time.sleep(1000)"
		if i > 0 {
			code = fmt.Sprintf("print('cell', %d)", i)
			b.run(t, "document.querySelector('.panel > p > button').click()")
		}
		cell := fmt.Sprintf("article:nth-of-type(%d)", i+1)
		b.enter(t, cell+" textarea", code)
		b.click(t, cell+" .tools button")
	}
	b.until(t, status(0, "running"))
	b.until(t, status(last, "queued"))
	b.picture(t, "queued")
	b.click(t, "article:nth-of-type(2) .tools button") // takes it out of the queue
	b.until(t, status(1, ""))
	b.click(t, "article:nth-of-type(1) .tools button")
	b.until(t, status(0, "failed"))
	for i := 2; i <= last; i++ {
		b.until(t, status(i, "done"))
	}
	if evaluate[bool](t, b, says("cell 1")) {
		t.Error("a cell that was taken out of the queue was run")
	}
	b.unexpected(t)
}

// TestConsoleCellsGoOnWhenHidden: a tab that is hidden closes its other streams, and goes on to the
// next cell.
func TestConsoleCellsGoOnWhenHidden(t *testing.T) {
	t.Parallel()
	s := startWithPython(t, conformance.Plan{})
	id := s.Running(t, conformance.Request(pythonImage, "sleep", "1000"))
	box := s.Enter(t, id)
	b := console(t, s, s.URL, conformance.AdminKey)
	b.visit(t, "#/sandboxes/"+id+"/notebook", there("article textarea"))
	b.run(t, "document.querySelector('.panel > p > button').click()")
	for i, code := range []string{
		"import os, time\nwhile not os.path.exists('/tmp/go'): time.sleep(0.05)",
		"open('/tmp/second', 'w').write('ran')",
	} {
		cell := fmt.Sprintf("article:nth-of-type(%d)", i+1)
		b.enter(t, cell+" textarea", code)
		b.click(t, cell+" .tools button")
	}
	b.until(t, "document.querySelector('article')?.dataset.status === 'running'")
	b.run(t, `{
		const later = setTimeout;
		window.released = 0; // what is done once the page was hidden for 15 s
		window.setTimeout = (action, delay, ...rest) => delay !== 15000 ? later(action, delay, ...rest) :
			later(() => { action(); window.released++; }, 0);
		Object.defineProperty(document, 'hidden', {get: () => true});
		document.dispatchEvent(new Event('visibilitychange'));
	}`)
	b.until(t, "window.released > 0")
	box.Upload(t, "/tmp/go", "")
	b.until(t, "document.querySelectorAll('article')[1]?.dataset.status === 'done'")
	box.Want(t, "cat /tmp/second", "ran")
	b.unexpected(t)
}

// TestConsoleNotebookFiles: a notebook is saved into the sandbox as a file that nbformat accepts,
// and opened again with its results and with cells that have no code.
func TestConsoleNotebookFiles(t *testing.T) {
	t.Parallel()
	s := startWithPython(t, conformance.Plan{})
	id := s.Running(t, conformance.Request(pythonImage, "sleep", "1000"))
	box := s.Enter(t, id)
	b := console(t, s, s.URL, conformance.AdminKey)
	b.visit(t, "#/sandboxes/"+id+"/notebook", there("article textarea"))
	b.enter(t, "article textarea", "print('printed')\n6 * 7")
	b.settled(t, "article .tools button", there("article[data-status=done]"))
	b.until(t, says("not saved"))
	b.pressFirst(t, "Save…")
	b.until(t, there("dialog #path"))
	b.run(t, "document.getElementById('path').value = '/tmp/made.ipynb'")
	b.settled(t, "dialog .primary", "!"+there("dialog"))
	b.until(t, says("/tmp/made.ipynb")+" && !"+says("not saved"))
	// Of Jupyter's own library, which no image has.
	nbformat := func(notebook, script string) string {
		t.Helper()
		file := filepath.Join(t.TempDir(), "book.ipynb")
		if err := os.WriteFile(file, []byte(notebook), 0o600); err != nil {
			t.Fatal(err)
		}
		const check = "import sys, nbformat\nbook = nbformat.read(sys.argv[1], nbformat.NO_CONVERT)\n" +
			"nbformat.validate(book)\n"
		return conformance.Tool(t, ".", nil, conformance.Script(t, "nbformat.sh"), "-W", "error", "-c", check+script, file)
	}
	made := box.Run(t, "cat /tmp/made.ipynb").Stdout
	if got := nbformat(made, `cell, = book.cells
printed, result = cell.outputs
print(cell.execution_count, cell.source.splitlines()[-1], printed.text.strip(), result.data["text/plain"])
`); got != "1 6 * 7 printed 42\n" {
		t.Errorf("the notebook that was saved has %q", got)
	}
	box.Upload(t, "/tmp/other.ipynb", nbformat(made, `
book.cells.insert(0, nbformat.v4.new_markdown_cell("# A title"))
nbformat.write(book, sys.stdout)
`))

	b.pressFirst(t, "Open…")
	b.until(t, there("dialog #path"))
	b.run(t, "document.getElementById('path').value = '/tmp/other.ipynb'")
	b.settled(t, "dialog .primary", "!"+there("dialog"))
	b.until(t, "document.querySelector('article[data-source=markdown] textarea')?.value === '# A title'")
	b.until(t, says("42"))
	b.accessible(t, axe(t), "opened notebook")
	b.enter(t, "article[data-source=markdown] textarea", "!")
	b.until(t, says("not saved"))
	b.pressFirst(t, "Save")
	b.until(t, "!"+says("not saved"))
	if got := nbformat(box.Run(t, "cat /tmp/other.ipynb").Stdout, `
title, code = book.cells
print(title.cell_type, code.cell_type, "!" in title.source, len(code.outputs))
`); got != "markdown code True 2\n" {
		t.Errorf("the notebook that was saved again has %q", got)
	}

	box.Upload(t, "/tmp/broken.ipynb", `{"nbformat": 3}`)
	b.pressFirst(t, "Open…")
	b.until(t, there("dialog #path"))
	b.run(t, "document.getElementById('path').value = '/tmp/broken.ipynb'")
	b.settled(t, "dialog .primary", says("no notebook of the format 4"))
	b.unexpected(t, "404 (Not Found)")
}

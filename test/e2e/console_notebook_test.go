package e2e_test

import (
	"fmt"
	"testing"

	"sandbox.internal/test/e2e/lives"
)

// TestConsoleQueuesCells: the cells of a notebook that wait for others take up no connections, so
// that the running one can be interrupted.
func TestConsoleQueuesCells(t *testing.T) {
	t.Parallel()
	s := start(t, lives.Plan{})
	id := s.Running(t, lives.Request(pythonImage, "sleep", "1000"))
	b := console(t, s, s.URL, lives.AdminKey)
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

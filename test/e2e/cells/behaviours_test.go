package cells_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	gen "sandbox.internal/clients/go/execd"
)

// output: what a cell prints arrives on its stream, between the events that begin and end every
// cell.
func output(t *testing.T, d *daemon, l language, id string) {
	events := d.run(t, id, l.print).good(t)
	if out, err := events.text("stdout"), events.text("stderr"); out != "to out\n" || err != "to err\n" {
		t.Errorf("stdout %q, stderr %q", out, err)
	}
	if first := events[0]; first.Type != "init" || first.Text == "" {
		t.Errorf("the first event: %s", first.data)
	}
	counted := slices.IndexFunc(events, func(e event) bool { return e.Type == "execution_count" })
	number := events.end().Count
	if counted < 0 || events[counted].Count != number {
		t.Errorf("the cell's number: event %d, end %s", counted, events.end().data)
	}
	if end := d.run(t, id, l.print).good(t).end(); end.Count != number+1 {
		t.Errorf("the number of the cell after %d: %s", number, end.data)
	}
}

// result: the value of a cell's last expression. Repeated, because some kernels are late with it.
func result(t *testing.T, d *daemon, l language, id string) {
	for range 20 {
		if got := d.run(t, id, l.value).good(t).result("text/plain"); string(got) != `"42"` {
			t.Fatalf("text/plain: %s", got)
		}
	}
}

// displays: content of every MIME type arrives as it is.
func displays(t *testing.T, d *daemon, l language, id string) {
	events := d.run(t, id, l.display).good(t)
	checkPNG(t, events, 3, 2)
	if got := events.result("application/json"); !equalJSON(got, `{"a":[1,2]}`) {
		t.Errorf("application/json: %s", got)
	}
	if got := events.result("text/html"); !equalJSON(got, `"<b>é</b>"`) {
		t.Errorf("text/html: %s", got)
	}
}

// printsOnly stands for result and displays where a language has neither.
func printsOnly(t *testing.T, d *daemon, l language, id string) {
	events := d.run(t, id, l.print).good(t)
	if slices.ContainsFunc(events, func(e event) bool { return e.Type == "result" }) {
		t.Errorf("a result: %v", events)
	}
}

func muchOutput(t *testing.T, d *daemon, l language, id string) {
	events := d.run(t, id, l.many).good(t)
	var want strings.Builder
	for i := range manyLines {
		want.WriteString(strconv.Itoa(i) + "\n")
	}
	if got := events.text("stdout"); got != want.String() {
		t.Errorf("%d bytes in %d lines arrived, want %d in %d", len(got), strings.Count(got, "\n"), want.Len(), manyLines)
	}
}

func variablesPersist(t *testing.T, d *daemon, l language, id string) {
	l.remembers(t, d, id)
}

// remembers checks that the context has what the cell "set" has set.
func (l language) remembers(t *testing.T, d *daemon, id string) {
	t.Helper()
	if got := d.run(t, id, l.get).good(t).text("stdout"); got != "42\n" {
		t.Errorf("the variable is %q", got)
	}
}

// forgot checks that the variable is not there: the cell fails, or prints something else.
func (l language) forgot(t *testing.T, events said) {
	t.Helper()
	if got := events.text("stdout"); strings.Contains(got, "42") || events.end().Type == "execution_complete" && l.name != "bash" {
		t.Errorf("a variable of another context is seen: stdout %q, %s", got, events.end().data)
	}
}

func contextsAreIsolated(t *testing.T, d *daemon, l language, id string) {
	l.remembers(t, d, id)
	l.forgot(t, d.run(t, d.newContext(t, strings.ToUpper(l.name)), l.get))
	l.remembers(t, d, id)
}

// cellsQueue: cells that are posted while another runs follow one another in the order in which
// they came.
func cellsQueue(t *testing.T, d *daemon, l language, id string) {
	running := []*stream{d.start(t, id, l.slow)}
	running[0].until("stdout")
	for range 4 {
		s := d.start(t, id, l.print)
		s.until("init")
		running = append(running, s)
	}
	first := running[0].until("execution_complete").Count
	for i, s := range running[1:] {
		if end := s.until("execution_complete"); end.Count != first+1+i {
			t.Errorf("cell %d after number %d ran as number %d", i+1, first, end.Count)
		}
	}
}

func errorsAreReported(t *testing.T, d *daemon, l language, id string) {
	events := d.run(t, id, l.raise)
	if got := events.text("stdout"); got != "before\n" {
		t.Errorf("stdout: %q", got)
	}
	l.raised(t, events, l.ename, l.evalue)
	if got := d.run(t, id, l.print).good(t).text("stdout"); got != "to out\n" {
		t.Errorf("the next cell: %q", got)
	}
}

func (l language) raised(t *testing.T, events said, ename, evalue string) {
	t.Helper()
	end := events.end()
	if end.Type != "error" || end.Error == nil || end.Error.Ename != ename || !strings.Contains(end.Error.Evalue, evalue) || len(end.Error.Traceback) == 0 {
		t.Errorf("the cell ended with %s, want %s %q and a traceback; stderr %q", end.data, ename, evalue, events.text("stderr"))
	}
}

func compileErrors(t *testing.T, d *daemon, l language, id string) {
	l.raised(t, d.run(t, id, l.wrong), l.wrongName, "")
}

// compileErrorIsBare stands for compileErrors where a kernel does not say what is wrong.
func compileErrorIsBare(t *testing.T, d *daemon, l language, id string) {
	if end := d.run(t, id, l.wrong).end(); end.Type != "error" || end.Error.Ename != l.wrongName {
		t.Errorf("the cell ended with %s", end.data)
	}
}

func interrupt(t *testing.T, d *daemon, l language, id string) {
	interrupted(t, d, id, l.endless)
	l.remembers(t, d, id)
}

func interruptWaiting(t *testing.T, d *daemon, l language, id string) {
	interrupted(t, d, id, l.waits)
	l.remembers(t, d, id)
}

// interrupted runs a cell that does not end, and interrupts it. It reports whether that ended the
// kernel as well.
func interrupted(t *testing.T, d *daemon, id, code string) (kernelEnded bool) {
	t.Helper()
	s := d.start(t, id, code)
	s.until("stdout")
	response, err := d.client.InterruptCode(t.Context(), &gen.InterruptCodeParams{ID: id})
	d.body(t, http.StatusOK, response, err)
	end := s.until("error")
	if end.Error.Ename != "KeyboardInterrupt" {
		t.Errorf("the interrupted cell ended with %s", end.data)
	}
	return strings.Contains(end.Error.Evalue, "was ended")
}

// interruptEnds stands for interrupt where a kernel cannot be interrupted.
func interruptEnds(t *testing.T, d *daemon, l language, _ string) {
	id := d.newContext(t, l.name)
	// The interrupt may come while the cell still computes, before it waits; the kernel then obeys
	// it and goes on.
	if interrupted(t, d, id, l.waits) {
		d.gone(t, id)
		id = d.newContext(t, l.name)
	}
	d.run(t, id, l.print).good(t)
}

func killedKernel(t *testing.T, d *daemon, l language, id string) {
	pid, err := strconv.Atoi(strings.TrimSpace(d.run(t, id, l.pid).good(t).text("stdout")))
	must(t, err)
	s := d.start(t, id, l.endless)
	s.until("stdout")
	d.command(t, "kill -KILL "+strconv.Itoa(pid))
	if end := s.until("error"); end.Error.Ename != "KernelDied" {
		t.Errorf("the cell of a killed kernel ended with %s", end.data)
	}
	d.gone(t, id)
	d.run(t, d.newContext(t, l.name), l.print).good(t)
}

func stateless(t *testing.T, d *daemon, l language, _ string) {
	before := len(d.contexts(t, l.name))
	d.alone(t, l.name, l.set).good(t)
	l.forgot(t, d.alone(t, l.name, l.get))
	if after := len(d.contexts(t, l.name)); after != before {
		t.Errorf("%d contexts, %d before", after, before)
	}
}

func deleteContexts(t *testing.T, d *daemon, l language, _ string) {
	ids := []string{d.newContext(t, l.name), d.newContext(t, l.name), d.newContext(t, l.name)}
	response, err := d.client.DeleteContext(t.Context(), ids[0])
	d.body(t, http.StatusOK, response, err)
	if d.exists(t, ids[0]) || !d.exists(t, ids[1]) || len(d.contexts(t, l.name)) != 2 {
		t.Errorf("one of three contexts was deleted; now there are %v", d.contexts(t, l.name))
	}
	running := d.start(t, ids[1], l.endless)
	running.until("stdout")
	response, err = d.client.DeleteContexts(t.Context(), &gen.DeleteContextsParams{Language: l.name})
	d.body(t, http.StatusOK, response, err)
	if end := running.until("error"); end.Error.Ename != "ContextEnded" {
		t.Errorf("the cell of a deleted context ended with %s", end.data)
	}
	if left := d.contexts(t, l.name); len(left) != 0 {
		t.Errorf("contexts are left: %v", left)
	}
}

// resume: a stream that is cut in the middle is followed on from the last event that was seen, and
// not one is missing or comes twice.
func resume(t *testing.T, d *daemon, l language, id string) {
	s := d.start(t, id, l.slow)
	var head said
	for len(head) == 0 || head[len(head)-1].Type != "stdout" {
		e, err := s.next()
		must(t, err)
		head = append(head, e)
	}
	must(t, s.body.Close())
	last := head.end().id
	response, err := d.client.StreamExecution(t.Context(), s.id, &gen.StreamExecutionParams{LastEventID: new(strconv.FormatInt(last, 10))})
	whole := append(head, d.stream(t, response, err).all(last+1).good(t)...)
	var want strings.Builder
	for i := range slowLines {
		want.WriteString(strconv.Itoa(i) + "\n")
	}
	if got := whole.text("stdout"); got != want.String() {
		t.Errorf("stdout over the cut: %q", got)
	}
}

func unknownLanguage(t *testing.T, d *daemon, installed []language) {
	for _, name := range []string{"cobol", "Python 3", ""} {
		response, err := d.client.CreateContext(t.Context(), nil, gen.ContextRequest{Language: name})
		text := string(d.body(t, http.StatusBadRequest, response, err))
		var problem gen.Error
		must(t, json.Unmarshal([]byte(text), &problem))
		for _, l := range installed {
			if name != "" && !strings.Contains(problem.Message, l.name) {
				t.Errorf("%q: %s does not name %s", name, text, l.name)
			}
		}
	}
}

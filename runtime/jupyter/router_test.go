package jupyter

import (
	"encoding/json"
	"testing"
	"testing/synctest"
)

func TestRouterKeepsACellUntilTheKernelIsDone(t *testing.T) {
	var r router
	m := executeRequest("session", "")
	q := r.add(m)
	status := func(state string) message {
		return message{
			Channel: channelIOPub, Header: header{Type: typeStatus}, Parent: m.Header,
			Content: json.RawMessage(`{"execution_state":"` + state + `"}`),
		}
	}
	r.route(status("busy"))
	if closed(q.begun) {
		t.Error("a status is taken for the beginning of the cell")
	}
	r.route(message{Channel: channelIOPub, Header: header{Type: typeExecuteInput},
		Parent: m.Header})
	if !closed(q.begun) {
		t.Error("the cell has not begun")
	}
	r.leave(q)
	if r.current() != q {
		t.Error("a cell without a reader is removed while it runs")
	}
	r.route(status("idle"))
	if r.current() != nil || len(r.requests) != 0 {
		t.Error("a cell that has ended is kept")
	}
}

func TestRouterTakesIdleTwice(t *testing.T) {
	var r router
	m := executeRequest("session", "")
	q := r.add(m)
	idle := message{Channel: channelIOPub, Header: header{Type: typeStatus}, Parent: m.Header,
		Content: json.RawMessage(`{"execution_state":"idle"}`)}
	r.route(idle)
	r.route(idle)
	if r.current() != nil {
		t.Error("the kernel is taken for busy")
	}
	r.leave(q)
	if len(r.requests) != 0 {
		t.Error("the request is kept")
	}
}

// TestRouterEndsACellBeforeItsReaderKnows: when the reader has the end, an interrupt finds the cell
// no more.
func TestRouterEndsACellBeforeItsReaderKnows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r router
		m := executeRequest("session", "")
		q := r.add(m)
		go func() {
			for range inbox { // of which the reader takes none
				r.route(message{Channel: channelIOPub, Header: header{Type: typeStream}, Parent: m.Header})
			}
			r.route(message{Channel: channelIOPub, Header: header{Type: typeStatus}, Parent: m.Header,
				Content: json.RawMessage(`{"execution_state":"idle"}`)})
		}()
		synctest.Wait()
		if r.current() != nil {
			t.Error("the cell is taken for the one that runs")
		}
		r.leave(q)
	})
}

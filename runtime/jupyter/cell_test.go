package jupyter

import (
	"encoding/json"
	"reflect"
	"testing"

	"sandbox.internal/runtime/kernel"
)

// said is a message about the request.
func said(request message, msgType, content string) message {
	return message{Header: header{ID: "x", Type: msgType}, Parent: request.Header,
		Content: json.RawMessage(content)}
}

func TestCell(t *testing.T) {
	request := executeRequest("session", "1+1")
	other := executeRequest("session", "2+2")
	busy := said(request, "status", `{"execution_state":"busy"}`)
	idle := said(request, "status", `{"execution_state":"idle"}`)
	ok := said(request, "execute_reply", `{"status":"ok","execution_count":3}`)
	raised := &kernel.Error{Name: "ValueError", Value: "no", Traceback: []string{"a", "b"}}
	const raisedContent = `"ename":"ValueError","evalue":"no","traceback":["a","b"]`

	for _, test := range []struct {
		name     string
		messages []message // the last one, and no other, must end the cell
		outputs  []kernel.Output
		reply    kernel.Reply
	}{
		{
			name:     "reply before idle",
			messages: []message{busy, ok, idle},
			reply:    kernel.Reply{Count: 3},
		},
		{
			name: "output after the reply",
			messages: []message{busy, ok,
				said(request, "stream", `{"name":"stdout","text":"late"}`), idle},
			outputs: []kernel.Output{{Type: kernel.OutputStdout, Text: "late"}},
			reply:   kernel.Reply{Count: 3},
		},
		{
			name: "a pager's pages",
			messages: []message{busy, said(request, "execute_reply", `{"status":"ok","execution_count":3,"payload":[
				{"source":"page","data":{"text/plain":"help"},"start":0},{"source":"set_next_input","text":"x"},7]}`),
				said(request, "stream", `{"name":"stdout","text":"late"}`), idle},
			outputs: []kernel.Output{{Type: kernel.OutputStdout, Text: "late"},
				{Type: kernel.OutputDisplay, Data: map[string]json.RawMessage{"text/plain": json.RawMessage(`"help"`)}}},
			reply: kernel.Reply{Count: 3},
		},
		{
			name:     "idle before the reply",
			messages: []message{busy, idle, ok},
			reply:    kernel.Reply{Count: 3},
		},
		{
			name: "another request's messages",
			messages: []message{
				said(other, "status", `{"execution_state":"idle"}`),
				said(other, "stream", `{"name":"stdout","text":"not ours"}`),
				said(other, "execute_reply", `{"status":"ok","execution_count":2}`),
				{Header: header{Type: "status"},
					Content: json.RawMessage(`{"execution_state":"idle"}`)},
				ok, idle,
			},
			reply: kernel.Reply{Count: 3},
		},
		{
			name: "every kind of output, in order",
			messages: []message{
				busy,
				said(request, "execute_input", `{"code":"1+1","execution_count":3}`),
				said(request, "stream", `{"name":"stdout","text":"out"}`),
				said(request, "stream", `{"name":"stderr","text":"err"}`),
				said(request, "stream", `{"name":"somewhere","text":"?"}`),
				said(request, "clear_output", `{"wait":true}`),
				said(request, "display_data",
					`{"data":{"application/json":{"a":12345678901234567890}},"metadata":{}}`),
				said(request, "update_display_data", `{"data":{"text/plain":"again"}}`),
				said(request, "execute_result", `{"execution_count":3,"data":{"text/plain":"2"}}`),
				ok, idle,
			},
			outputs: []kernel.Output{
				{Type: kernel.OutputCount, Count: 3},
				{Type: kernel.OutputStdout, Text: "out"},
				{Type: kernel.OutputStderr, Text: "err"},
				{Type: kernel.OutputDisplay,
					Data: map[string]json.RawMessage{"application/json": json.RawMessage(
						`{"a":12345678901234567890}`)}},
				{Type: kernel.OutputDisplay,
					Data: map[string]json.RawMessage{"text/plain": json.RawMessage(`"again"`)}},
				{Type: kernel.OutputResult, Count: 3,
					Data: map[string]json.RawMessage{"text/plain": json.RawMessage(`"2"`)}},
			},
			reply: kernel.Reply{Count: 3},
		},
		{
			name: "a cell that raises",
			messages: []message{
				busy, said(request, "error", `{`+raisedContent+`}`),
				said(request, "execute_reply",
					`{"status":"error","execution_count":3,`+raisedContent+`}`), idle,
			},
			outputs: []kernel.Output{{Type: kernel.OutputError, Error: raised}},
			reply:   kernel.Reply{Count: 3, Error: raised},
		},
		{
			name: "a reply without the error that the output had",
			messages: []message{
				said(request, "error", `{`+raisedContent+`}`),
				said(request, "execute_reply", `{"status":"error","execution_count":3}`), idle,
			},
			outputs: []kernel.Output{{Type: kernel.OutputError, Error: raised}},
			reply:   kernel.Reply{Count: 3, Error: raised},
		},
		{
			name: "output that was lost",
			messages: []message{said(request, typeLost, `"too long"`),
				said(request, "stream", `{"name":"stdout","text":"more"}`), ok, idle},
			outputs: []kernel.Output{{Type: kernel.OutputLost, Text: "too long"},
				{Type: kernel.OutputStdout, Text: "more"}},
			reply: kernel.Reply{Count: 3,
				Error: &kernel.Error{Name: "OutputLost", Value: "too long"}},
		},
		{
			name: "output that was lost in a cell that raises",
			messages: []message{said(request, typeLost, `"too long"`),
				said(request, "error", `{`+raisedContent+`}`),
				said(request, "execute_reply",
					`{"status":"error","execution_count":3,`+raisedContent+`}`), idle},
			outputs: []kernel.Output{{Type: kernel.OutputLost, Text: "too long"},
				{Type: kernel.OutputError, Error: raised}},
			reply: kernel.Reply{Count: 3, Error: raised},
		},
		{
			name:     "a cell that was called off",
			messages: []message{idle, said(request, "execute_reply", `{"status":"aborted"}`)},
			reply: kernel.Reply{Error: &kernel.Error{Name: "ExecutionError",
				Value: `the kernel replied with status "aborted"`}},
		},
		{
			name: "a field of another type",
			messages: []message{said(request, "execute_result",
				`{"execution_count":"3","data":{"text/plain":"2"}}`), ok, idle},
			outputs: []kernel.Output{{Type: kernel.OutputResult,
				Data: map[string]json.RawMessage{"text/plain": json.RawMessage(`"2"`)}}},
			reply: kernel.Reply{Count: 3},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			var outputs []kernel.Output
			c := newCell(request, func(o kernel.Output) { outputs = append(outputs, o) })
			for i, m := range test.messages {
				if done, last := c.take(m), i == len(test.messages)-1; done != last {
					t.Fatalf("after message %d (%s) of %d: done is %v", i, m.Header.Type,
						len(test.messages), done)
				}
			}
			c.take(said(request, "stream", `{"name":"stdout","text":"after the end"}`))
			if !reflect.DeepEqual(outputs, test.outputs) {
				t.Errorf("outputs:\n got %+v\nwant %+v", outputs, test.outputs)
			}
			if !reflect.DeepEqual(c.reply, test.reply) {
				t.Errorf("reply: got %+v, want %+v", c.reply, test.reply)
			}
		})
	}
}

func TestCellWithUnreadableReplyIsNoSuccess(t *testing.T) {
	request := executeRequest("session", "")
	c := newCell(request, func(kernel.Output) {})
	c.take(said(request, "execute_reply", `{"status":`))
	if !c.take(said(request, "status", `{"execution_state":"idle"}`)) {
		t.Fatal("the cell is not done")
	}
	if c.reply.Error == nil {
		t.Error("a reply that cannot be decoded counts as a success")
	}
}

func TestRequests(t *testing.T) {
	for _, test := range []struct {
		request message
		channel channel
		msgType string
		content string
	}{
		{executeRequest("s", "é"), "shell", "execute_request",
			`{"allow_stdin":false,"code":"é","silent":false,"stop_on_error":false,"store_history":true,"user_expressions":{}}`},
		{kernelInfoRequest("s"), "shell", "kernel_info_request", `{}`},
		{interruptRequest("s"), "control", "interrupt_request", `{}`},
		{shutdownRequest("s"), "control", "shutdown_request", `{"restart":false}`},
	} {
		t.Run(test.msgType, func(t *testing.T) {
			m := test.request
			if m.Channel != test.channel || m.Header.Type != test.msgType ||
				string(m.Content) != test.content {
				t.Errorf("got %s %s %s", m.Channel, m.Header.Type, m.Content)
			}
			if h := m.Header; h.ID == "" || h.Session != "s" || h.Date == "" || h.Username == "" ||
				h.Version != "5.3" {
				t.Errorf("header: %+v", h)
			}
			encoded, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			var fields map[string]json.RawMessage
			if err := json.Unmarshal(encoded, &fields); err != nil {
				t.Fatal(err)
			}
			if string(fields["parent_header"]) != "{}" || string(fields["metadata"]) != "{}" {
				t.Errorf("a request without a parent: %s", encoded)
			}
		})
	}
	first, second := executeRequest("s", ""), executeRequest("s", "")
	if first.Header.ID == second.Header.ID {
		t.Error("two requests have the same id")
	}
}

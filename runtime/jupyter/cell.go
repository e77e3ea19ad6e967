package jupyter

import (
	"encoding/json"
	"fmt"

	"sandbox.internal/runtime/kernel"
)

// cell follows one execute_request through the messages of a kernel.
//
// The reply and the output come on different channels, and either may be first. The cell is done
// when it has both the reply and the status idle, which a kernel publishes after the last output:
// then nothing of the cell can be lost.
type cell struct {
	request string // the id of the execute_request
	handle  func(kernel.Output)

	reply     kernel.Reply
	status    string                       // what the reply says about how it ended
	lost      *kernel.Error                // a message was passed over
	published *kernel.Error                // the last error on the output channel
	pages     []map[string]json.RawMessage // what the reply has for a pager, by MIME type
	replied   bool
	idle      bool
}

func newCell(request message, handle func(kernel.Output)) *cell {
	return &cell{request: request.Header.ID, handle: handle}
}

// take processes the next message and reports whether the cell is done; reply is valid then.
// Messages that belong to other requests, and those that a cell has no use for (clear_output,
// comm), change nothing.
func (c *cell) take(m message) (done bool) {
	if m.Parent.ID == c.request && !c.done() {
		switch m.Header.Type {
		case typeExecuteReply:
			c.takeReply(m.Content)
		case typeStatus:
			c.idle = c.idle || m.executionState() == "idle"
		case typeLost:
			c.takeLost(m)
		default:
			c.takeOutput(m)
		}
	}
	if c.done() {
		c.conclude()
	}
	return c.done()
}

// conclude finds the error of a cell whose reply names none. A cell that has published an error did
// not end well, whatever its reply says: GoNB calls one good that does not compile, or that panics.
func (c *cell) conclude() {
	for _, page := range c.pages { // the last of what the cell shows
		c.handle(kernel.Output{Type: kernel.OutputDisplay, Data: page})
	}
	c.pages = nil
	switch {
	case c.reply.Error != nil:
	case c.published != nil:
		c.reply.Error = c.published
	case c.lost != nil:
		c.reply.Error = c.lost
	case c.status != "ok": // "aborted", or an error without a name
		c.reply.Error = &kernel.Error{Name: "ExecutionError",
			Value: fmt.Sprintf("the kernel replied with status %q", c.status)}
	}
}

func (c *cell) done() bool { return c.replied && c.idle }

func (c *cell) takeLost(m message) {
	var text string
	_ = json.Unmarshal(m.Content, &text) // our own
	c.loseOutput(text)
}

// loseOutput reports that output is missing: at this place, whatever else becomes of the cell, and
// as its error, unless it has one.
func (c *cell) loseOutput(text string) {
	c.lost = &kernel.Error{Name: "OutputLost", Value: text}
	c.handle(kernel.Output{Type: kernel.OutputLost, Text: text})
}

func (c *cell) takeReply(content json.RawMessage) {
	c.replied = true
	var reply struct {
		Status string `json:"status"`
		Count  int    `json:"execution_count"`
		raised
		Payload json.RawMessage `json:"payload"`
	}
	if err := json.Unmarshal(content, &reply); err != nil {
		// Without this, a cell whose outcome is unknown would count as a success.
		c.reply.Error = &kernel.Error{Name: "ProtocolError",
			Value: fmt.Sprintf("the kernel's reply cannot be read: %v", err)}
		return
	}
	c.reply.Count, c.status = reply.Count, reply.Status
	if reply.Status != "ok" && reply.Name != "" {
		c.reply.Error = reply.toError()
	}
	c.takePayload(reply.Payload)
}

// takePayload keeps what a client with a pager would show in it, such as the help that ? asks
// IPython for. A payload of another form is for clients that edit cells.
func (c *cell) takePayload(payload json.RawMessage) {
	var entries []json.RawMessage
	_ = json.Unmarshal(payload, &entries)
	for _, entry := range entries {
		var page struct {
			Source string                     `json:"source"`
			Data   map[string]json.RawMessage `json:"data"`
		}
		if json.Unmarshal(entry, &page) == nil && page.Source == "page" && len(page.Data) > 0 {
			c.pages = append(c.pages, page.Data)
		}
	}
}

func (c *cell) takeOutput(m message) {
	var content struct {
		stream
		Data  map[string]json.RawMessage `json:"data"`
		Count int                        `json:"execution_count"`
		raised
	}
	// What has another type than the protocol says stays empty; the rest of the message still
	// counts.
	_ = json.Unmarshal(m.Content, &content)
	switch m.Header.Type {
	case typeStream:
		c.takeStream(content.stream)
	case typeExecuteInput:
		c.handle(kernel.Output{Type: kernel.OutputCount, Count: content.Count})
	case typeExecuteResult:
		c.handle(kernel.Output{Type: kernel.OutputResult, Data: content.Data, Count: content.Count})
	case typeDisplayData, typeUpdateDisplayData:
		c.handle(kernel.Output{Type: kernel.OutputDisplay, Data: content.Data})
	case typeError:
		c.published = content.toError()
		c.handle(kernel.Output{Type: kernel.OutputError, Error: c.published})
	}
}

// stream is the content of a message about printed text.
type stream struct {
	Name string `json:"name"` // stdout or stderr
	Text string `json:"text"`
}

func (c *cell) takeStream(s stream) {
	kinds := map[string]kernel.OutputType{"stdout": kernel.OutputStdout,
		"stderr": kernel.OutputStderr}
	if kind, known := kinds[s.Name]; known && s.Text != "" {
		c.handle(kernel.Output{Type: kind, Text: s.Text})
	}
}

// raised is the part that an error message and a reply of status error have in common.
type raised struct {
	Name      string   `json:"ename"`
	Value     string   `json:"evalue"`
	Traceback []string `json:"traceback"`
}

func (r raised) toError() *kernel.Error {
	return &kernel.Error{Name: r.Name, Value: r.Value, Traceback: r.Traceback}
}

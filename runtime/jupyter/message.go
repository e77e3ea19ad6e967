package jupyter

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// protocolVersion is the version of the Jupyter messaging protocol that is used.
const protocolVersion = "5.3"

// channel is the socket of a kernel that a message belongs to.
type channel string

const (
	channelShell   channel = "shell"
	channelIOPub   channel = "iopub"
	channelControl channel = "control"
)

// The types of the messages that we send or look at.
const (
	typeExecuteRequest    = "execute_request"
	typeExecuteReply      = "execute_reply"
	typeExecuteInput      = "execute_input"
	typeExecuteResult     = "execute_result"
	typeDisplayData       = "display_data"
	typeUpdateDisplayData = "update_display_data"
	typeStream            = "stream"
	typeError             = "error"
	typeStatus            = "status"
	typeKernelInfoRequest = "kernel_info_request"
	typeKernelInfoReply   = "kernel_info_reply"
	typeInterruptRequest  = "interrupt_request"
	typeShutdownRequest   = "shutdown_request"
	// our own: a message was passed over; the content says why
	typeLost = "sandbox_lost"
)

// message is a Jupyter message, in the form that a Jupyter Server's WebSocket carries.
type message struct {
	Channel  channel         `json:"channel,omitempty"`
	Header   header          `json:"header"`
	Parent   header          `json:"parent_header"`
	Metadata json.RawMessage `json:"metadata"`
	Content  json.RawMessage `json:"content"`
}

// header identifies a message. The zero header is "{}", which is how a request says that it has no
// parent.
type header struct {
	ID       string `json:"msg_id,omitempty"`
	Type     string `json:"msg_type,omitempty"`
	Session  string `json:"session,omitempty"`
	Username string `json:"username,omitempty"`
	Date     string `json:"date,omitempty"`
	Version  string `json:"version,omitempty"`
}

// newSession returns an id for a client of a kernel.
func newSession() string { return uuid.NewString() }

// executeRequest asks to run a cell. The cell cannot ask for input, and what waits behind it is not
// called off when it raises: ipykernel does that to requests that arrive just after the error, too.
func executeRequest(session, code string) message {
	m := newRequest(session, channelShell, typeExecuteRequest, struct{}{})
	m.Content = executeContent(code, true)
	return m
}

// executeContent is the content of an execute_request for a cell, or for code that is none.
func executeContent(code string, isCell bool) json.RawMessage {
	return encode(typeExecuteRequest, map[string]any{
		"code":             code,
		"silent":           !isCell,
		"store_history":    isCell,
		"user_expressions": map[string]string{},
		"allow_stdin":      false,
		"stop_on_error":    false,
	})
}

func kernelInfoRequest(session string) message {
	return newRequest(session, channelShell, typeKernelInfoRequest, struct{}{})
}

func interruptRequest(session string) message {
	return newRequest(session, channelControl, typeInterruptRequest, struct{}{})
}

func shutdownRequest(session string) message {
	return newRequest(session, channelControl, typeShutdownRequest,
		map[string]bool{"restart": false})
}

func newRequest(session string, on channel, msgType string, content any) message {
	return message{
		Channel: on,
		Header: header{
			ID:       uuid.NewString(),
			Type:     msgType,
			Session:  session,
			Username: "execd",
			Date:     time.Now().UTC().Format(time.RFC3339Nano),
			Version:  protocolVersion,
		},
		Metadata: json.RawMessage("{}"),
		Content:  encode(msgType, content),
	}
}

func encode(msgType string, content any) json.RawMessage {
	encoded, err := json.Marshal(content)
	if err != nil { // the callers above pass strings and booleans
		panic(fmt.Sprintf("encoding a %s: %v", msgType, err))
	}
	return encoded
}

// executionState is the state of a status message: starting, busy, idle, restarting or dead; empty
// for any other message.
func (m message) executionState() string {
	if m.Header.Type != typeStatus {
		return ""
	}
	var content struct {
		State string `json:"execution_state"`
	}
	if json.Unmarshal(m.Content, &content) != nil {
		return ""
	}
	return content.State
}

package e2b

import (
	"strconv"
	"strings"
	"syscall"

	"sandbox.internal/execd/command"
	"sandbox.internal/execd/terminal"
)

// The messages of process.Process. Fields that are absent have their default.
type (
	processConfig struct {
		Cmd  string            `json:"cmd,omitempty"`
		Args []string          `json:"args,omitempty"`
		Envs map[string]string `json:"envs,omitempty"`
		Cwd  string            `json:"cwd,omitempty"`
	}
	ptyConfig struct {
		Size struct {
			Cols number `json:"cols"`
			Rows number `json:"rows"`
		} `json:"size"`
	}
	startRequest struct {
		Process processConfig `json:"process"`
		PTY     *ptyConfig    `json:"pty"`
		Tag     string        `json:"tag"`
		Stdin   *bool         `json:"stdin"` // absent means true, as before there was the field
	}
	selector struct {
		PID *number `json:"pid"`
		Tag *string `json:"tag"`
	}
	processRequest struct {
		Process selector `json:"process"`
	}
	inputRequest struct {
		processRequest
		Input struct {
			Stdin *blob `json:"stdin"`
			PTY   *blob `json:"pty"`
		} `json:"input"`
	}
	signalRequest struct {
		processRequest
		Signal signal `json:"signal"`
	}
	updateRequest struct {
		processRequest
		PTY *ptyConfig `json:"pty"`
	}
	processInfo struct {
		Config processConfig `json:"config"`
		PID    int           `json:"pid"`
		Tag    string        `json:"tag,omitempty"`
	}
	listResponse struct {
		Processes []processInfo `json:"processes,omitempty"`
	}
)

// The messages of a stream of process.Process, but for data: see output.
type (
	processEvent struct {
		Start     *startEvent `json:"start,omitempty"`
		End       *endEvent   `json:"end,omitempty"`
		KeepAlive *empty      `json:"keepalive,omitempty"`
	}
	eventMessage struct {
		Event processEvent `json:"event"`
	}
	startEvent struct {
		PID int `json:"pid"`
	}
	endEvent struct {
		ExitCode int    `json:"exitCode,omitempty"` // -1 when there is none
		Exited   bool   `json:"exited,omitempty"`
		Status   string `json:"status,omitempty"`
		Error    string `json:"error,omitempty"`
	}
)

// signal is the name of a signal, or its number.
type signal string

// UnmarshalJSON implements json.Unmarshaler.
func (s *signal) UnmarshalJSON(text []byte) error {
	*s = signal(strings.Trim(string(text), `"`))
	return nil
}

var signals = map[signal]syscall.Signal{
	"SIGNAL_SIGTERM": syscall.SIGTERM, "15": syscall.SIGTERM,
	"SIGNAL_SIGKILL": syscall.SIGKILL, "9": syscall.SIGKILL,
}

// size returns how many bytes the configuration has.
func (c processConfig) size() int {
	const perWord = 48 // of a string and its place in a map
	size := len(c.Cmd) + len(c.Cwd)
	for _, arg := range c.Args {
		size += perWord + len(arg)
	}
	for name, value := range c.Envs {
		size += 2*perWord + len(name) + len(value)
	}
	return size
}

// text returns the configuration as a command line for people: without the login shell that E2B's
// clients put around one.
func (c processConfig) text(quoted string) string {
	if n := len(c.Args); strings.HasSuffix(c.Cmd, "/bash") && n == 3 && c.Args[0] == "-l" && c.Args[1] == "-c" {
		return c.Args[2]
	}
	return quoted
}

// size returns the size of a terminal; 0 is the engine's default.
func (p *ptyConfig) size() (rows, cols uint16, failed *failure) {
	const most = 1<<16 - 1
	if p.Size.Rows > most || p.Size.Cols > most {
		return 0, 0, failf(codeInvalidArgument, "pty.size: rows and cols must be at most %d", most)
	}
	return uint16(p.Size.Rows), uint16(p.Size.Cols), nil
}

func endOfCommand(s command.Status) endEvent {
	return endOf(s.Wait, s.TimedOut || s.ExitCode != nil)
}

func endOfTerminal(s terminal.Status) endEvent {
	return endOf(s.Wait, s.TimedOut || s.ExitCode != nil)
}

// endOf returns the end of a process with a status of wait(2), if that is known.
func endOf(status syscall.WaitStatus, known bool) endEvent {
	var end endEvent
	switch {
	case !known:
		return endEvent{ExitCode: -1, Status: "exit status unknown", Error: "exit status unknown"}
	case status.Signaled():
		end.ExitCode, end.Status = -1, "signal: "+status.Signal().String()
		if status.CoreDump() {
			end.Status += " (core dumped)"
		}
	default:
		end.ExitCode, end.Exited, end.Status = status.ExitStatus(), true, "exit status "+strconv.Itoa(status.ExitStatus())
	}
	if end.ExitCode != 0 {
		end.Error = end.Status
	}
	return end
}

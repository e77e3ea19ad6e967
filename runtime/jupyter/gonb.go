package jupyter

import (
	"strings"

	"sandbox.internal/runtime/kernel"
)

// gonbImplementation is how GoNB, the kernel for Go, names itself.
const gonbImplementation = "gonb"

// gonbTail is how much of the end of stderr is looked at for a panic, in bytes.
const gonbTail = 64 << 10

// gonbEnd is what GoNB prints to stderr, as one message and the last one, when a cell's program did
// not end well: what os/exec says about that, after ^C when there was an interrupt.
var gonbEnd = pattern(`^(\^C\n)?(?:exit status (\d+)|signal: (.+))\n$`)

// gonbPanic is the prefix of what the Go runtime prints when it ends a program.
var gonbPanic = pattern(`(?m)^(panic|fatal error): (.*)$`)

// gonbWatch finds out how a cell of GoNB ended, which the kernel's reply does not say: it is ok
// whatever became of the program.
type gonbWatch struct {
	stderr string // the end of it
	last   string // the last message of it
}

// listen returns a handler that inspects the cell's output and passes it on.
func (g *gonbWatch) listen(handle func(kernel.Output)) func(kernel.Output) {
	return func(output kernel.Output) {
		if output.Type == kernel.OutputStderr {
			g.last = output.Text
			g.stderr += output.Text
			g.stderr = g.stderr[max(0, len(g.stderr)-gonbTail):]
		}
		handle(output)
	}
}

// failure returns how the cell's program failed, nil when it did not.
func (g *gonbWatch) failure() *kernel.Error {
	end := gonbEnd().FindStringSubmatch(g.last)
	if end == nil {
		return nil
	}
	said := strings.TrimSpace(g.last)
	if end[1] != "" || end[3] == "interrupt" {
		return &kernel.Error{Name: "KeyboardInterrupt", Traceback: []string{said}}
	}
	if at := gonbPanic().FindStringSubmatchIndex(g.stderr); at != nil {
		return &kernel.Error{
			Name: g.stderr[at[2]:at[3]], Value: g.stderr[at[4]:at[5]],
			Traceback: strings.Split(strings.TrimSpace(g.stderr[at[0]:]), "\n"),
		}
	}
	if end[2] != "" {
		return &kernel.Error{Name: "ExitCode", Value: end[2], Traceback: []string{said}}
	}
	return &kernel.Error{Name: "Signal", Value: end[3], Traceback: []string{said}}
}

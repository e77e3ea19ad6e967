// Package kernel is the contract between execd's code engine and whatever runs Jupyter kernels: a
// Jupyter Server, or execd itself.
//
// A kernel executes one cell after the other and keeps its variables. The contract has no contexts,
// queues or streams; those are the caller's.
package kernel

import (
	"context"
	"encoding/json"
	"errors"
)

// Sentinels that errors of this package's implementations wrap.
var (
	// ErrUnavailable: the kernels' host (the Jupyter Server) does not answer; the same call may
	// work later.
	ErrUnavailable = errors.New("kernel host unavailable")
	// ErrNoSpec: no kernelspec of that name is installed.
	ErrNoSpec = errors.New("no such kernelspec")
	// ErrEnded: the kernel has ended, and with it all its state.
	ErrEnded = errors.New("the kernel has ended")
	// ErrNotKilled comes with ErrEnded where it is known that no SIGKILL has ended the kernel.
	ErrNotKilled = errors.New("no SIGKILL has ended the kernel")
	// ErrStart: the kernel did not start; the message has the end of its output.
	ErrStart = errors.New("the kernel did not start")
)

// Host starts kernels. Methods may be called concurrently.
type Host interface {
	// Specs returns the installed kernelspecs, sorted by name. It returns ErrUnavailable.
	Specs(ctx context.Context) ([]Spec, error)

	// Start starts a kernel of the named spec and returns when it answers. It returns ErrNoSpec,
	// ErrStart and ErrUnavailable. ctx bounds the start only.
	Start(ctx context.Context, spec string, options StartOptions) (Kernel, error)

	// Close ends every kernel that was started here and releases what the host holds.
	Close() error
}

// Spec is an installed kernelspec.
type Spec struct {
	Name        string // argument of Start, e.g. "python3"
	Language    string // as the spec says it, e.g. "python"
	DisplayName string
}

// StartOptions says how a kernel begins.
type StartOptions struct {
	// Dir is the kernel's working directory; empty means the host's own.
	Dir string
}

// Kernel is one running kernel. Execute is called by one goroutine at a time, everything else by
// any.
type Kernel interface {
	// Execute runs one cell. It calls handle, one call at a time and in the kernel's order, for
	// everything that the cell says, and returns when the kernel has replied and has said on its
	// output channel that it is idle: nothing of the cell follows. Executing a cell that raises
	// succeeds: Reply has the exception. It returns ErrEnded when the kernel ends meanwhile. When
	// ctx ends, Execute returns its error at once; the kernel goes on unless it is interrupted.
	Execute(ctx context.Context, code string, handle func(Output)) (Reply, error)

	// Prepare runs code that is no cell: it has no number and no place in the kernel's history, and
	// what it says is dropped. Otherwise it works as Execute does, which it is called instead of.
	Prepare(ctx context.Context, code string) (Reply, error)

	// Interrupt makes the running cell stop, as far as the kernel can, and reports whether there
	// was one: without, it does nothing. A cell runs from some time after the call of Execute on.
	// It returns ErrEnded.
	Interrupt(ctx context.Context) (running bool, err error)

	// Done returns a channel that is closed when the kernel has ended, whatever the reason.
	Done() <-chan struct{}

	// Stop ends the kernel, by force if need be, and returns when nothing of it is left.
	// Interrupting or ending a kernel that has ended succeeds.
	Stop(ctx context.Context) error
}

// OutputType says what a cell said.
type OutputType string

// The types of messages of a cell (Jupyter messaging protocol, IOPub).
const (
	OutputStdout  OutputType = "stdout"  // stream, name stdout
	OutputStderr  OutputType = "stderr"  // stream, name stderr
	OutputResult  OutputType = "result"  // execute_result: the value of the cell
	OutputDisplay OutputType = "display" // display_data and update_display_data: something to show
	OutputError   OutputType = "error"   // error: the cell raised
	OutputCount   OutputType = "count"   // execute_input: the cell has begun and has this number
	OutputLost    OutputType = "lost"    // not said by the kernel: output is missing here
)

// Output is something that a cell said.
type Output struct {
	Type OutputType
	// Text is what a stream brought, or says what was lost.
	Text string
	// Data maps MIME types to content, for results and displays: a JSON string for text and for
	// base64-encoded binary content, any JSON value for JSON types.
	Data map[string]json.RawMessage
	// Count is the cell's number; for results and OutputCount.
	Count int
	// Error is set for OutputError.
	Error *Error
}

// Error is what a cell raised.
type Error struct {
	Name      string
	Value     string
	Traceback []string
}

// Reply is how a cell ended.
type Reply struct {
	Count int
	// Error is what the cell raised, nil when it ended well.
	Error *Error
}

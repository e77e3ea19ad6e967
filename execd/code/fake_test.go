package code_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"sandbox.internal/runtime/kernel"
)

// fakeHost runs kernels that obey a few words, to bring about what real kernels rarely do. The real
// ones are tested over HTTP.
type fakeHost struct {
	mu      sync.Mutex
	kernels []*fakeKernel

	started         atomic.Int64
	living          atomic.Int64
	refuse          atomic.Bool
	uninterruptible bool                    // its kernels do not react to an interrupt
	dies            func(word string) error // when not nil, what the end of a kernel that dies is
	claimed         func()                  // called after it
	early           atomic.Int64            // so many interrupts find no cell yet
	hold            chan struct{}           // when not nil, starts wait until it is closed
}

func (h *fakeHost) Specs(context.Context) ([]kernel.Spec, error) {
	return []kernel.Spec{{Name: "bash", Language: "bash"}, {Name: "python3", Language: "python"}}, nil
}

func (h *fakeHost) Start(_ context.Context, spec string, options kernel.StartOptions) (kernel.Kernel, error) {
	if h.refuse.Load() {
		return nil, fmt.Errorf("%w: it said no", kernel.ErrStart)
	}
	if h.hold != nil {
		<-h.hold
	}
	h.living.Add(1)
	k := &fakeKernel{host: h, dir: options.Dir, number: h.started.Add(1), ended: make(chan struct{}), interrupted: make(chan struct{}, 1)}
	h.mu.Lock()
	h.kernels = append(h.kernels, k)
	h.mu.Unlock()
	return k, nil
}

// killAll kills every kernel that was started so far.
func (h *fakeHost) killAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, k := range h.kernels {
		k.die()
	}
}

func (h *fakeHost) Close() error { return nil }

type fakeKernel struct {
	host        *fakeHost
	dir         string
	number      int64
	prepared    []string // what was prepared
	count       int
	once        sync.Once
	ended       chan struct{}
	interrupted chan struct{}
}

// Execute understands: "say TEXT", "lose WHAT" (and raise), "number" (the kernel's own), "wait"
// (until an interrupt), "raise", "die [ERROR]" (after it has shown an error), "show".
func (k *fakeKernel) Execute(ctx context.Context, code string, handle func(kernel.Output)) (kernel.Reply, error) {
	k.count++
	handle(kernel.Output{Type: kernel.OutputCount, Count: k.count})
	word, rest, _ := strings.Cut(code, " ")
	switch word {
	case "say":
		handle(kernel.Output{Type: kernel.OutputStdout, Text: rest})
	case "lose":
		handle(kernel.Output{Type: kernel.OutputLost, Text: rest})
		return k.raise(handle, "ValueError", "bad")
	case "number":
		handle(kernel.Output{Type: kernel.OutputStdout, Text: fmt.Sprintln(k.number)})
	case "dir":
		handle(kernel.Output{Type: kernel.OutputStdout, Text: fmt.Sprintln(k.dir)})
	case "prepared": // how often
		handle(kernel.Output{Type: kernel.OutputStdout, Text: fmt.Sprintln(len(k.prepared))})
	case "show":
		data := map[string]json.RawMessage{"text/plain": json.RawMessage(`"x"`)}
		handle(kernel.Output{Type: kernel.OutputDisplay, Data: data})
		handle(kernel.Output{Type: kernel.OutputResult, Data: data})
	case "raise":
		return k.raise(handle, "ValueError", "bad")
	case "die":
		if rest != "" { // shows an error, and goes on
			_, _ = k.raise(handle, rest, "")
		}
		err := kernel.ErrEnded
		if k.host.dies != nil {
			err = k.host.dies(rest)
			k.host.claimed()
		}
		k.die()
		return kernel.Reply{}, err
	case "wait":
		handle(kernel.Output{Type: kernel.OutputStdout, Text: "waiting\n"})
		select {
		case <-k.interrupted:
			return k.raise(handle, "KeyboardInterrupt", "")
		case <-k.ended:
			return kernel.Reply{}, kernel.ErrEnded
		case <-ctx.Done():
			return kernel.Reply{}, ctx.Err()
		}
	}
	return kernel.Reply{Count: k.count}, nil
}

func (k *fakeKernel) Prepare(_ context.Context, code string) (kernel.Reply, error) {
	k.prepared = append(k.prepared, code)
	return kernel.Reply{Count: k.count}, nil
}

func (k *fakeKernel) raise(handle func(kernel.Output), name, value string) (kernel.Reply, error) {
	err := &kernel.Error{Name: name, Value: value, Traceback: []string{"line 1"}}
	handle(kernel.Output{Type: kernel.OutputError, Error: err})
	return kernel.Reply{Count: k.count, Error: &kernel.Error{Name: name, Value: value}}, nil
}

func (k *fakeKernel) Interrupt(context.Context) (running bool, err error) {
	if k.host.early.Add(-1) >= 0 {
		return false, nil
	}
	if !k.host.uninterruptible {
		select {
		case k.interrupted <- struct{}{}:
		default:
		}
	}
	return true, nil
}

func (k *fakeKernel) Done() <-chan struct{} { return k.ended }

func (k *fakeKernel) Stop(context.Context) error {
	k.die()
	return nil
}

func (k *fakeKernel) die() {
	k.once.Do(func() {
		close(k.ended)
		k.host.living.Add(-1)
	})
}

package jupyter

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"sandbox.internal/runtime/kernel"
)

// askAgain is how long a kernel that is starting gets before it is asked again.
const askAgain = 200 * time.Millisecond

// serverKernel is a kernel of a [Server]. One goroutine reads its WebSocket as long as it lives.
type serverKernel struct {
	server *Server
	id     string
	socket webSocket

	// life is cancelled when the kernel has ended, for whatever reason. Its cause wraps ErrEnded.
	life context.Context
	end  context.CancelCauseFunc

	// removing holds one token, for the one who removes the kernel from the server.
	removing chan struct{}
	removed  bool

	line
}

func newServerKernel(s *Server, id string) *serverKernel {
	k := &serverKernel{server: s, id: id, removing: make(chan struct{}, 1)}
	k.life, k.end = context.WithCancelCause(context.Background())
	k.line = line{session: newSession(), frozen: s.frozen, gone: k.life.Done(),
		endError: func() error { return context.Cause(k.life) }, send: k.post}
	return k
}

// connect opens the kernel's WebSocket and returns when messages go both ways.
func (k *serverKernel) connect(ctx context.Context) error {
	dialing, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(k.life, cancel)()
	opened, err := k.server.dial(dialing, k.id, k.session, &k.arrivals)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("starting a kernel: %w", ctx.Err())
	case k.life.Err() != nil:
		return fmt.Errorf("%w: %w", kernel.ErrStart, context.Cause(k.life))
	case isStatus(err, http.StatusNotFound), isStatus(err, http.StatusInternalServerError):
		return fmt.Errorf("%w: %w", kernel.ErrStart, err)
	case err != nil:
		return fmt.Errorf("connecting to a new kernel: %w", unavailable(err))
	}
	k.socket = opened
	if err := k.server.beginWork(); err != nil {
		k.socket.close()
		return err
	}

	// The server tries its own connections to the kernel at the same time, and takes output for
	// that which would be ours. So a request may stay without its idle: only when one has had both
	// is the way clear.
	answered := make(chan struct{})
	go k.read(answered)
	for {
		if err := k.socket.send(k.life, kernelInfoRequest(k.session)); err != nil {
			k.fail("sending to it failed: %w", err)
		}
		select {
		case <-answered:
			return nil
		case <-time.After(askAgain):
		case <-k.life.Done():
			return fmt.Errorf("%w: %w", kernel.ErrStart, context.Cause(k.life))
		case <-ctx.Done():
			return fmt.Errorf("starting a kernel: %w", ctx.Err())
		}
	}
}

// read passes on the kernel's messages until the kernel has ended. It closes answered when a
// kernel_info_request has been answered in full.
func (k *serverKernel) read(answered chan<- struct{}) {
	defer k.server.work.Done()
	defer k.socket.close()
	k.awaitAnswer(answered)
	for k.life.Err() == nil {
		if m, ok := k.receive(); ok {
			k.route(m)
		}
	}
	k.discard(context.Cause(k.life))
}

func (k *serverKernel) awaitAnswer(answered chan<- struct{}) {
	replied, idle := make(map[string]bool), make(map[string]bool)
	for k.life.Err() == nil {
		m, ok := k.receive()
		if !ok || m.Parent.Session != k.session {
			continue
		}
		switch {
		case m.Header.Type == typeKernelInfoReply:
			replied[m.Parent.ID] = true
			k.setInfo(m.Content)
		case m.executionState() == "idle":
			idle[m.Parent.ID] = true
		}
		if replied[m.Parent.ID] && idle[m.Parent.ID] {
			close(answered)
			return
		}
	}
}

// receive returns the next message; not ok means that there is none, because the kernel has ended
// or the message is too long.
func (k *serverKernel) receive() (m message, ok bool) {
	m, err := k.socket.receive(k.life)
	if oversize := (*oversizeError)(nil); errors.As(err, &oversize) {
		k.reportLost(oversize)
		return message{}, false
	}
	if err != nil {
		k.fail("the connection to the Jupyter Server broke: %w", err)
		return message{}, false
	}
	// A kernel that the server has restarted has lost its variables.
	if state := m.executionState(); state == "dead" || state == "restarting" {
		k.fail("the Jupyter Server reports that it is %s", state)
		return message{}, false
	}
	return m, true
}

// post sends a message. It does so not with ctx, whose end in the middle would break the
// connection, and not here, where a stuck server would hold the caller.
func (k *serverKernel) post(_ context.Context, m message) error {
	go func() {
		if err := k.socket.send(k.life, m); err != nil {
			k.fail("sending to it failed: %w", err)
		}
	}()
	return nil
}

// Interrupt implements [kernel.Kernel].
func (k *serverKernel) Interrupt(ctx context.Context) (running bool, err error) {
	q, err := k.awaitBegun(ctx)
	if q == nil || err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, interruptTime)
	defer cancel()
	err = k.server.call(ctx, http.MethodPost, "api/kernels/"+k.id+"/interrupt", nil, nil)
	switch {
	case isStatus(err, http.StatusNotFound):
		return true, k.fail("the Jupyter Server has no such kernel any more")
	case err != nil:
		return true, fmt.Errorf("interrupting a kernel: %w", unavailable(err))
	}
	return true, nil
}

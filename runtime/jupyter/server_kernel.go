package jupyter

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"sandbox.internal/runtime/kernel"
)

const (
	// askAgain is how long a kernel that is starting gets before it is asked again.
	askAgain = 200 * time.Millisecond
	// beginTime is how long an interrupt waits for the cell that was sent last to begin.
	beginTime = time.Second
	// replyTime is how long the reply may stay away once the kernel is idle.
	replyTime = 5 * time.Second
)

// serverKernel is a kernel of a [Server]. One goroutine reads its WebSocket as long as it lives.
type serverKernel struct {
	server  *Server
	id      string
	session string
	socket  webSocket

	// life ends when the kernel is dead, for whatever reason. Its cause wraps ErrDead.
	life context.Context
	end  context.CancelCauseFunc

	mu      sync.Mutex
	current *execution // the cell that was sent last

	// removing holds one token, for the one who removes the kernel from the server.
	removing chan struct{}
	removed  bool
}

// execution is the way of one cell's messages from the reader to Execute.
type execution struct {
	request  string
	messages chan message
	left     chan struct{} // closed when Execute has returned
	begun    chan struct{} // closed when the cell has said something that only a running cell says
	idle     chan struct{} // closed when the kernel is done with the cell

	interrupted atomic.Bool
}

func newServerKernel(s *Server, id string) *serverKernel {
	k := &serverKernel{server: s, id: id, session: newSession(), removing: make(chan struct{}, 1)}
	k.life, k.end = context.WithCancelCause(context.Background())
	return k
}

// connect opens the kernel's WebSocket and returns when messages go both ways.
func (k *serverKernel) connect(ctx context.Context) error {
	dialing, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(k.life, cancel)()
	opened, err := k.server.dial(dialing, k.id, k.session)
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

	// The server tries its own connections to the kernel at the same time, and takes output for that which would be ours. So a request
	// may stay without its idle: only when one has had both is the way clear.
	answered := make(chan struct{})
	go k.read(answered)
	for {
		if err := k.socket.send(k.life, kernelInfoRequest(k.session)); err != nil {
			k.die("sending to it failed: %w", err)
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

// read hands on what the kernel says until the kernel is dead. It closes answered when a kernel_info_request has been answered in full.
func (k *serverKernel) read(answered chan<- struct{}) {
	defer k.server.work.Done()
	defer k.socket.close()
	k.awaitAnswer(answered)
	for k.life.Err() == nil {
		if m, ok := k.receive(); ok {
			k.deliver(m)
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
		case m.executionState() == "idle":
			idle[m.Parent.ID] = true
		}
		if replied[m.Parent.ID] && idle[m.Parent.ID] {
			close(answered)
			return
		}
	}
}

// receive returns the next message; not ok means that there is none because the kernel has died.
func (k *serverKernel) receive() (m message, ok bool) {
	m, err := k.socket.receive(k.life)
	if err != nil {
		k.die("the connection to the Jupyter Server broke: %w", err)
		return message{}, false
	}
	// A kernel that the server has started again is another one: it knows nothing.
	if state := m.executionState(); state == "dead" || state == "restarting" {
		k.die("the Jupyter Server says that it is %s", state)
		return message{}, false
	}
	return m, true
}

// deliver gives the message to the cell that is waiting for it. What belongs to no such cell is dropped.
func (k *serverKernel) deliver(m message) {
	k.mu.Lock()
	e := k.current
	k.mu.Unlock()
	if e == nil || m.Parent.ID != e.request {
		return
	}
	state := m.executionState()
	if state == "" {
		closeOnce(e.begun)
	}
	select {
	case e.messages <- m:
	case <-e.left:
	case <-k.life.Done():
	}
	if state == "idle" {
		closeOnce(e.idle)
	}
}

// closeOnce closes a channel that only one goroutine closes.
func closeOnce(c chan struct{}) {
	if !closed(c) {
		close(c)
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Execute implements [kernel.Kernel].
func (k *serverKernel) Execute(ctx context.Context, code string, handle func(kernel.Output)) (kernel.Reply, error) {
	if k.life.Err() != nil {
		return kernel.Reply{}, context.Cause(k.life)
	}
	if ctx.Err() != nil {
		return kernel.Reply{}, ctx.Err()
	}
	request := executeRequest(k.session, code)
	cell := newCell(request, handle)
	e := &execution{
		request:  request.Header.ID,
		messages: make(chan message),
		left:     make(chan struct{}),
		begun:    make(chan struct{}),
		idle:     make(chan struct{}),
	}
	defer close(e.left)
	k.mu.Lock()
	k.current = e
	k.mu.Unlock()

	// Not with ctx, whose end in the middle would break the connection, and not here, where a stuck server would hold us.
	go func() {
		if err := k.socket.send(k.life, request); err != nil {
			k.die("sending to it failed: %w", err)
		}
	}()
	var missing <-chan time.Time
	for {
		select {
		case m := <-e.messages:
			if cell.take(m) {
				return cell.reply, nil
			}
			if cell.idle && missing == nil {
				missing = time.After(replyTime)
			}
		case <-missing:
			// ipykernel forgets to reply when an interrupt meets it on the way into the cell or out of it.
			name := "ExecutionError"
			if e.interrupted.Load() {
				name = "KeyboardInterrupt"
			}
			return kernel.Reply{Error: &kernel.Error{Name: name, Value: "the kernel gave the cell up without a reply"}}, nil
		case <-ctx.Done():
			return kernel.Reply{}, ctx.Err()
		case <-k.life.Done():
			return kernel.Reply{}, context.Cause(k.life)
		}
	}
}

// Interrupt implements [kernel.Kernel].
func (k *serverKernel) Interrupt(ctx context.Context) error {
	k.mu.Lock()
	e := k.current
	k.mu.Unlock()
	if k.life.Err() != nil {
		return context.Cause(k.life)
	}
	if e == nil {
		return nil
	}
	// An interrupt that arrives before its cell is lost.
	select {
	case <-e.begun:
	case <-time.After(beginTime):
	case <-e.idle:
	case <-ctx.Done():
		return ctx.Err()
	case <-k.life.Done():
		return context.Cause(k.life)
	}
	if closed(e.idle) {
		return nil
	}
	e.interrupted.Store(true)
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	err := k.server.call(ctx, http.MethodPost, "api/kernels/"+k.id+"/interrupt", nil, nil)
	switch {
	case isStatus(err, http.StatusNotFound):
		return k.die("the Jupyter Server does not know it any more")
	case err != nil:
		return fmt.Errorf("interrupting a kernel: %w", unavailable(err))
	}
	return nil
}

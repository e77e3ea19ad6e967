package jupyter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/kernel"
)

const (
	// subscribeWait is how long the output channel may lag behind a kernel's reply before its
	// subscription is taken for not yet working and the kernel is asked again.
	subscribeWait = 20 * time.Millisecond
	// brokenWait is how long a kernel that has closed a channel has to end by itself; all do when
	// they shut down.
	brokenWait = 2 * time.Second
	// exitWait is how long a kernel whose start has failed has to exit by itself.
	exitWait = 250 * time.Millisecond
	// drainWait is how long channels of a kernel that has ended are read on. Its children may hold
	// them open.
	drainWait = 250 * time.Millisecond
	// shutdownWait is how long an idle kernel has to follow a shutdown_request, and termWait any
	// kernel a SIGTERM.
	shutdownWait = time.Second
	termWait     = 500 * time.Millisecond
)

// directKernel is a kernel that we started ourselves.
//
// Goroutines: two read and one writes per channel, one watches over the life of the whole. All end
// with the process.
type directKernel struct {
	spec       kernelspec
	connection *connection
	process    *process
	wire       wire
	log        zerolog.Logger

	shell, iopub, control *zmqSocket
	broken                chan struct{} // gets a value when a channel ends
	ended                 chan struct{} // closed when the process has ended
	// closed when nothing of the kernel is left, and its last message has been passed on
	end     chan struct{}
	traffic sync.WaitGroup

	line
}

// startKernel starts a kernel and returns when it answers and its output channel is proven to work.
// ctx bounds the start. Nothing is left of a kernel that did not come up; the error says how it
// ended, and the end of its output.
func startKernel(ctx context.Context, spec kernelspec, options kernel.StartOptions,
	host DirectOptions) (*directKernel, error) {
	connection, err := newConnection(host.TempDir, spec)
	if err != nil {
		return nil, err
	}
	process, err := host.start(connection.argv(spec), spec.environ(host.Env), options.Dir)
	if err != nil {
		return nil, errors.Join(err, connection.remove())
	}
	k := &directKernel{
		spec: spec, connection: connection, process: process, wire: wire{key: connection.key},
		log: host.Logger.With().Str("kernelspec", spec.name).Int("pid",
			process.cmd.Process.Pid).Logger(),
		broken: make(chan struct{}, 1), ended: make(chan struct{}), end: make(chan struct{}),
	}
	k.line = line{
		session: newSession(), frozen: host.Frozen, gone: k.end, endError: k.exitError,
		send: func(ctx context.Context, m message) error { return k.queue(ctx, k.shell, m) },
	}
	starting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-process.exited:
			cancel(kernel.ErrEnded)
		case <-starting.Done():
		}
	}()
	err = k.connect(starting)
	go k.live()
	if err == nil {
		err = k.ready(starting)
	}
	if err == nil {
		return k, nil
	}

	if ctx.Err() == nil { // a channel has ended, and the process ends: its exit status says more
		select {
		case <-process.exited:
			err = errors.New(process.cmd.ProcessState.String())
		case <-time.After(exitWait):
		}
	}
	process.kill()
	<-k.gone
	if state := process.cmd.ProcessState; state != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		// A kernel that is stuck has used little.
		err = fmt.Errorf("%w, in which it used %v of processor time", err,
			(state.UserTime() + state.SystemTime()).Round(time.Millisecond))
	}
	return nil, fmt.Errorf("%w%s", err, process.outputTail())
}

// connect opens the channels. The output channel is first, because it has to be ready before
// anything is asked.
func (k *directKernel) connect(ctx context.Context) (err error) {
	for _, open := range []struct {
		socket  **zmqSocket
		channel channel
	}{{&k.iopub, channelIOPub}, {&k.shell, channelShell}, {&k.control, channelControl}} {
		if *open.socket, err = dialKernel(ctx, k.connection, open.channel, k.session); err != nil {
			return err
		}
		waiting := newBacklog()
		(*open.socket).receiveThrough(k.arrivals.count(waiting))
		k.traffic.Go(func() { waiting.fill((*open.socket).raw) })
		k.traffic.Go(func() {
			k.read(*open.socket)
			waiting.leave()
		})
	}
	return nil
}

// sockets returns the channels that are open.
func (k *directKernel) sockets() []*zmqSocket {
	var open []*zmqSocket
	for _, s := range []*zmqSocket{k.iopub, k.shell, k.control} {
		if s != nil {
			open = append(open, s)
		}
	}
	return open
}

// live watches over the kernel until its end, and cleans up.
func (k *directKernel) live() {
	for _, s := range k.sockets() {
		if s != k.iopub {
			k.traffic.Go(func() { k.write(s) })
		}
	}
	select {
	case <-k.process.exited:
	case <-k.broken: // it cannot be used any more
		timer := time.NewTimer(brokenWait)
		defer timer.Stop()
		select {
		case <-k.process.exited:
		case <-timer.C:
			k.log.Warn().Msg("killing a kernel that has closed a channel and did not exit")
			k.process.kill()
		}
	}
	close(k.ended)
	k.log.Info().Stringer("state", k.process.cmd.ProcessState).Msg("a kernel's process has ended")
	for _, s := range k.sockets() {
		s.raw.SetDeadline(time.Now().Add(drainWait))
	}
	k.traffic.Wait()
	for _, s := range k.sockets() {
		s.raw.Close()
	}
	if err := k.connection.remove(); err != nil {
		k.log.Warn().Err(err).Msg("cannot remove the directory of a kernel")
	}
	close(k.end)
}

// read passes on what comes from a channel until it ends.
func (k *directKernel) read(s *zmqSocket) {
	for {
		frames, err := s.read()
		if oversize := (*oversizeError)(nil); errors.As(err, &oversize) {
			k.reportLost(oversize)
			continue
		}
		if err != nil {
			if !errors.Is(err, io.EOF) && !closed(k.ended) {
				k.log.Warn().Err(err).Str("channel",
					string(s.channel)).Msg("a channel of a kernel has broken")
			}
			k.reportBroken()
			return
		}
		k.take(frames, s.channel)
	}
}

// take decodes a message and passes it on.
func (k *directKernel) take(frames [][]byte, from channel) {
	defer k.arrivals.arrived()()
	m, err := k.wire.decode(frames, from)
	if err != nil {
		k.log.Warn().Err(err).Str("channel", string(from)).Msg("dropped a message of a kernel")
		return
	}
	k.route(m)
}

// write sends what is queued for a channel until the kernel has ended.
func (k *directKernel) write(s *zmqSocket) {
	for {
		select {
		case m := <-s.out:
			frames, err := k.wire.encode(m)
			if err == nil {
				err = s.write(frames)
			}
			if err != nil {
				k.reportBroken()
				return
			}
		case <-k.ended:
			return
		}
	}
}

func (k *directKernel) reportBroken() {
	select {
	case k.broken <- struct{}{}:
	default:
	}
}

// queue queues a message.
func (k *directKernel) queue(ctx context.Context, s *zmqSocket, m message) error {
	select {
	case s.out <- m:
		return nil
	case <-k.ended:
		return k.exitError()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (k *directKernel) exitError() error {
	err := fmt.Errorf("%w: %s%s", kernel.ErrEnded, k.process.cmd.ProcessState, k.process.outputTail())
	state := k.process.cmd.ProcessState
	if state == nil {
		return err
	}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signal() != syscall.SIGKILL {
		return notKilled{err}
	}
	return err
}

// notKilled is the end of a kernel that no SIGKILL has brought about.
type notKilled struct{ error }

func (n notKilled) Unwrap() []error { return []error{n.error, kernel.ErrNotKilled} }

// ready returns when the kernel has replied and has published so on the output channel. A
// subscription takes effect some time after it was sent, and what is published before is lost: so
// the request is repeated until its status arrives there.
func (k *directKernel) ready(ctx context.Context) error {
	for {
		if complete, err := k.probe(ctx); complete || err != nil {
			return err
		}
	}
}

// probe sends a kernel_info_request, and reports whether the kernel replied and its status arrived
// on the output channel.
func (k *directKernel) probe(ctx context.Context) (complete bool, err error) {
	m := kernelInfoRequest(k.session)
	q := k.add(m)
	defer k.abandon(q)
	if err := k.send(ctx, m); err != nil {
		return false, err
	}
	var replied, idle bool
	var late <-chan time.Time
	for {
		select {
		case m := <-q.messages:
			if m.Header.Type == typeKernelInfoReply {
				replied = true
				k.setInfo(m.Content)
			}
			idle = idle || m.executionState() == "idle"
			if replied && idle {
				return true, nil
			}
			if replied && late == nil {
				late = time.After(subscribeWait)
			}
		case <-late:
			return false, nil
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

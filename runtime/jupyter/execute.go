package jupyter

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"sandbox.internal/runtime/kernel"
)

const (
	// silenceWait is how long nothing may arrive from the kernel, after the reply to a cell, before
	// the end of the cell's output is taken for lost. A kernel may prepare a long message
	// meanwhile, on a busy machine for longer than ten seconds.
	silenceWait = time.Minute
	// beginTime is how long an interrupt waits for the cell that was sent last to begin.
	beginTime = time.Second
	// replyTime is how long the reply may stay away once the kernel is idle.
	replyTime = 5 * time.Second
	// stragglerTime is how long a kernel may be silent while output that follows the end of a cell
	// is waited for, once it has answered the question that brings it.
	stragglerTime = 5 * time.Second
	// stragglersTime is how long a kernel may go on to print after that: a cell may have left
	// something behind that prints for ever.
	stragglersTime = 30 * time.Second
)

// line is what both ways to a kernel have in common: how a cell is executed, and how the one that
// is to be interrupted is found.
type line struct {
	router
	session  string
	send     func(context.Context, message) error // does not wait for the kernel
	frozen   func() bool                          // the kernel's process is stopped; nil means never
	arrivals arrivals
	// closed when the kernel has ended, and no message of it follows
	gone     <-chan struct{}
	endError func() error // why it has ended; wraps kernel.ErrEnded
	// implementation is how the kernel names itself. Some have peculiarities.
	implementation string
}

// setInfo reads the implementation from the content of a kernel_info_reply.
func (l *line) setInfo(info json.RawMessage) {
	var content struct {
		Implementation string `json:"implementation"`
	}
	// A kernel whose reply cannot be decoded gets no special handling.
	_ = json.Unmarshal(info, &content)
	l.implementation = content.Implementation
}

// Execute implements [kernel.Kernel].
func (l *line) Execute(ctx context.Context, code string,
	handle func(kernel.Output)) (kernel.Reply, error) {
	return l.execute(ctx, executeContent(code, true), handle)
}

// Prepare implements [kernel.Kernel].
func (l *line) Prepare(ctx context.Context, code string) (kernel.Reply, error) {
	return l.execute(ctx, executeContent(code, false), func(kernel.Output) {})
}

func (l *line) execute(ctx context.Context, content json.RawMessage,
	handle func(kernel.Output)) (kernel.Reply, error) {
	if closed(l.gone) {
		return kernel.Reply{}, l.endError()
	}
	if ctx.Err() != nil {
		return kernel.Reply{}, ctx.Err()
	}
	var gonb gonbWatch
	m := executeRequest(l.session, "")
	q := l.add(m) // first: from here on an interrupt finds the cell
	m.Content = content
	switch l.implementation {
	case denoImplementation:
		handle = denoHandle(q, handle)
	case gonbImplementation:
		handle = gonb.listen(handle)
	}
	cell := newCell(m, handle)
	if err := l.send(ctx, m); err != nil {
		l.abandon(q)
		return kernel.Reply{}, err
	}
	reply, err := l.await(ctx, cell, q)
	if err == nil && !cell.idle {
		defer l.abandon(q) // the kernel is done with it, and will not say so
	} else {
		defer l.leave(q)
	}
	switch {
	case err != nil:
	case l.implementation == denoImplementation:
		l.awaitStragglers(ctx, cell, q)
		if reply.Error == nil {
			reply.Error = cell.lost
		}
		reply.Error = denoError(q, reply.Error)
	case l.implementation == gonbImplementation && reply.Error == nil:
		reply.Error = gonb.failure()
	}
	return reply, err
}

// await follows a cell to its end.
func (l *line) await(ctx context.Context, cell *cell, q *request) (kernel.Reply, error) {
	var patience *kernel.Patience // with what is missing, once one of reply and idle has come
	defer func() { stopPatience(patience) }()
	arriving := l.arrivals.observe()
	for {
		select {
		case m := <-q.messages:
			if cell.take(m) {
				return cell.reply, nil
			}
			switch {
			case cell.idle && m.executionState() == "idle":
				stopPatience(patience)
				patience = kernel.NewPatience(replyTime, l.frozen)
			case cell.replied:
				stopPatience(patience)
				patience = kernel.NewPatience(silenceWait, l.frozen)
			}
		case <-ticks(patience):
			switch {
			case !cell.idle && arriving():
				patience.Restart()
			case !patience.Exhausted() || len(q.messages) > 0:
			case cell.idle:
				// ipykernel does not reply when an interrupt arrives while it enters or leaves the
				// cell.
				name := "ExecutionError"
				if q.interrupted.Load() {
					name = "KeyboardInterrupt"
				}
				return kernel.Reply{Error: &kernel.Error{Name: name,
					Value: "the kernel gave the cell up without a reply"}}, nil
			default:
				// The kernel dropped what it published. To wait on would hang, and to call it
				// complete would be wrong.
				cell.loseOutput("the kernel replied, but the end of its output was lost")
				cell.reply.Error = cell.lost
				return cell.reply, nil
			}
		case <-ctx.Done():
			return kernel.Reply{}, ctx.Err()
		case <-l.gone:
			return l.rest(cell, q)
		}
	}
}

// ticks returns when a patience is to be asked; never when there is none.
func ticks(p *kernel.Patience) <-chan time.Time {
	if p == nil {
		return nil
	}
	return p.C
}

func stopPatience(p *kernel.Patience) {
	if p != nil {
		p.Stop()
	}
}

// rest takes the messages that a kernel had sent before it ended.
func (l *line) rest(cell *cell, q *request) (kernel.Reply, error) {
	for {
		select {
		case m := <-q.messages:
			if cell.take(m) {
				return cell.reply, nil
			}
		default:
			return kernel.Reply{}, l.endError()
		}
	}
}

// awaitStragglers takes the output of a cell that comes after its end, as Deno's does now and then:
// Deno publishes what is printed from a queue of its own, behind the back of the messages that end
// a cell. So it is made to print something that can be recognised, to both streams: what comes
// before that is the cell's, whichever of the two requests Deno thinks it belongs to.
func (l *line) awaitStragglers(ctx context.Context, cell *cell, q *request) {
	question, mark := denoMark(l.session)
	q = l.addTo(q, question)
	if l.send(ctx, question) != nil {
		l.abandon(q)
		return // the kernel is gone; its cell had ended
	}
	defer l.abandon(q) // no interrupt is meant for it, and it may have no end
	seen := make(map[string]bool)
	// Once it has replied: a cell may have replaced what prints.
	var patience, all *kernel.Patience
	defer func() {
		stopPatience(patience)
		stopPatience(all)
	}()
	arriving := l.arrivals.observe()
	for len(seen) < 2 {
		select {
		case m := <-q.messages:
			if m.Header.Type == typeExecuteReply || patience != nil {
				stopPatience(patience)
				patience = kernel.NewPatience(stragglerTime, l.frozen)
			}
			if patience != nil && all == nil {
				all = kernel.NewPatience(stragglersTime, l.frozen)
			}
			switch m.Header.Type {
			case typeLost:
				cell.takeLost(m)
			case typeExecuteResult, typeDisplayData, typeUpdateDisplayData:
				cell.takeOutput(m)
			case typeStream:
				var content stream
				if json.Unmarshal(m.Content, &content) != nil || seen[content.Name] {
					continue
				}
				content.Text, _, seen[content.Name] = strings.Cut(content.Text, mark)
				if !seen[content.Name] {
					delete(seen, content.Name)
				}
				cell.takeStream(content)
			}
		case <-ticks(patience):
			if arriving() {
				patience.Restart()
			} else if patience.Exhausted() {
				return
			}
		case <-ticks(all):
			if all.Exhausted() {
				return
			}
		case <-ctx.Done():
			return
		case <-l.gone:
			return
		}
	}
}

// awaitBegun returns the cell that an interrupt is meant for, when it has begun: an interrupt that
// comes before is lost. It returns nil when there is no such cell (any more).
func (l *line) awaitBegun(ctx context.Context) (*request, error) {
	if closed(l.gone) {
		return nil, l.endError()
	}
	q := l.current()
	if q == nil {
		return nil, nil
	}
	timer := time.NewTimer(beginTime)
	defer timer.Stop()
	select {
	case <-q.begun:
	case <-timer.C:
	case <-q.idle:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.gone:
		return nil, l.endError()
	}
	if closed(q.idle) {
		return nil, nil
	}
	q.interrupted.Store(true)
	return q, nil
}

// Done implements [kernel.Kernel].
func (l *line) Done() <-chan struct{} { return l.gone }

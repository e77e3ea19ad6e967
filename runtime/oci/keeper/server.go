package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"sync"
	"time"
)

const (
	// queuedMessages bounds what is kept for a client that does not read. Its connection is closed
	// then; another one gets the same ends.
	queuedMessages = 1 << 14
	// reports bounds what a keeper ever prints: its standard error may be a file in memory.
	reports = 1000
	// acceptPause is how long no client is accepted after one could not be.
	acceptPause = 50 * time.Millisecond
)

// keeper is the state of the program.
type keeper struct {
	version    string
	cgroups    cgroups
	seesStatus bool // proc_pid_stat(5) has the exit status of zombies
	reaper     *reaper
	programs   programs
	poller     *poller
	slots      chan struct{} // one element per launch in progress

	mu          sync.Mutex
	idle        sync.Cond // signaled when working becomes 0
	working     int       // launches in progress, and ends that are being recorded
	leaving     bool
	containers  map[string]*container
	connections map[*connection]struct{}
	reported    int
}

// report prints a failure that no client waits for.
func (k *keeper) report(text string) {
	k.mu.Lock()
	k.reported++
	print := k.reported <= reports
	k.mu.Unlock()
	if print {
		_, _ = os.Stderr.WriteString("sandbox-keeper: " + text + "\n")
	}
}

// serve serves the clients that the socket brings, until it ends.
func (k *keeper) serve(connections *socket) error {
	buffer := make([]byte, greetingBytes)
	for {
		files, err := connections.receive(buffer, &response{})
		if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) {
			return err
		}
		if err != nil { // no descriptors or memory: the client begins again
			time.Sleep(acceptPause)
			continue
		}
		for _, fd := range files {
			if s, err := newSocket(fd); err == nil {
				go k.serveConnection(s)
			}
		}
	}
}

// connection is one client.
type connection struct {
	keeper *keeper
	socket *socket
	wake   chan struct{} // of the sender; has room for one

	mu       sync.Mutex
	closed   bool
	queue    []outgoing
	launches map[uint64]context.CancelFunc
}

// outgoing is a message with its descriptors, which are closed once it was sent.
type outgoing struct {
	data  []byte
	files []int
}

// serveConnection handles the requests of a client until its connection ends.
func (k *keeper) serveConnection(s *socket) {
	c := &connection{keeper: k, socket: s, wake: make(chan struct{}, 1), launches: map[uint64]context.CancelFunc{}}
	k.mu.Lock()
	k.connections[c] = struct{}{}
	k.mu.Unlock()
	go c.sendQueue()
	buffer := make([]byte, messageBytes)
	for {
		var r request
		files, err := s.receive(buffer, &r)
		if err != nil {
			break
		}
		c.handle(&r, files)
	}
	k.mu.Lock()
	delete(k.connections, c)
	k.mu.Unlock()
	c.close()
}

// close drops what is queued. Launches go on: the client's successor finds what came of them.
func (c *connection) close() {
	c.mu.Lock()
	queue := c.queue
	c.closed, c.queue = true, nil
	c.mu.Unlock()
	c.socket.close()
	c.signal()
	for _, message := range queue {
		message.done()
	}
}

func (o outgoing) done() {
	closeAll(o.files...) // no last one of a FIFO: its container has one that is closed when it is forgotten
}

func (c *connection) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// reply queues a message. It never waits.
func (c *connection) reply(r response, files ...int) {
	data, err := json.Marshal(r)
	if err != nil {
		data, _ = json.Marshal(response{Number: r.Number, Error: err.Error()})
	}
	message := outgoing{data, files}
	c.mu.Lock()
	full := len(c.queue) >= queuedMessages
	if c.closed || full {
		c.mu.Unlock()
		message.done()
		if full {
			c.close()
		}
		return
	}
	c.queue = append(c.queue, message)
	c.mu.Unlock()
	c.signal()
}

func (c *connection) sendQueue() {
	for range c.wake {
		c.mu.Lock()
		queue, closed := c.queue, c.closed
		c.queue = nil
		c.mu.Unlock()
		for _, message := range queue {
			if !closed && c.socket.sendBytes(message.data, message.files) != nil {
				closed = true
				c.close()
			}
			message.done()
		}
		if closed {
			return
		}
	}
}

// broadcast reports to every client.
func (k *keeper) broadcast(r response) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for c := range k.connections {
		c.reply(r)
	}
}

func (c *connection) handle(r *request, files []int) {
	if r.Operation != opAdopt {
		closeAll(files...)
	}
	switch r.Operation {
	case opHello:
		c.reply(response{Number: r.Number, Version: c.keeper.version, PID: os.Getpid()})
	case opLaunch:
		c.handleLaunch(r)
	case opCancel:
		c.mu.Lock()
		cancel := c.launches[r.Number]
		c.mu.Unlock()
		if cancel != nil {
			cancel()
		}
	case opAdopt:
		c.handleAdopt(r, files)
	case opForget:
		go func() { // a launch in progress takes its time
			c.keeper.forget(r.Container)
			c.reply(response{Number: r.Number})
		}()
	case opUsers:
		go c.handleUsers(r.Number, r.IDs, r.Owner)
	case opLeave:
		go c.keeper.leave()
	default:
		c.reply(response{Number: r.Number, Error: "unknown operation " + string(r.Operation)})
	}
}

func (c *connection) handleLaunch(r *request) {
	if r.Launch == nil || r.Launch.ID == "" {
		c.reply(response{Number: r.Number, Error: "launch without an id"})
		return
	}
	if !c.keeper.acceptWork() {
		c.reply(response{Number: r.Number, Error: "this keeper ends"})
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.mu.Lock()
	c.launches[r.Number] = cancel
	c.mu.Unlock()
	go func() {
		defer c.keeper.endWork()
		launched, files, after := c.keeper.launch(ctx, r.Launch)
		cancel()
		c.mu.Lock()
		delete(c.launches, r.Number)
		c.mu.Unlock()
		answer := response{Number: r.Number, Failure: launched.failure}
		if launched.failure == nil {
			answer.Container, answer.Process = launched.id, &launched.process
		}
		c.reply(answer, files...)
		after()
		c.replayEnd(launched)
	}()
}

// replayEnd reports the end of a container that has ended before the client knew of it.
func (c *connection) replayEnd(of *container) {
	if end := of.ended(); end != nil {
		c.reply(response{Container: of.id, End: end})
	}
}

func (c *connection) handleAdopt(r *request, files []int) {
	if r.Launch == nil || r.Process == nil {
		closeAll(files...)
		c.reply(response{Number: r.Number, Error: "adoption without a launch or a process"})
		return
	}
	adopted, known := c.keeper.register(&r.Launch.Watched, *r.Process) // here, so that a request to forget it that follows finds it
	go func() {
		var err error
		if known {
			c.keeper.reaper.closeFIFOs(files...)
			<-adopted.launched
		} else {
			err = c.keeper.adopt(adopted, r.Launch.Output, files)
		}
		if err != nil {
			c.reply(response{Number: r.Number, Error: err.Error()})
			return
		}
		answer := response{Number: r.Number, Container: adopted.id}
		if len(files) < messageFiles {
			c.reply(answer, adopted.share()...)
		} else {
			c.reply(answer)
		}
		c.replayEnd(adopted)
	}()
}

// beginWork keeps the process from ending until endWork.
func (k *keeper) beginWork() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.working++
}

// acceptWork is beginWork for what a client asks for. It reports false, and there is no endWork,
// when the process is about to end.
func (k *keeper) acceptWork() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.leaving {
		return false
	}
	k.working++
	return true
}

func (k *keeper) endWork() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.working--; k.working == 0 {
		k.idle.Broadcast()
	}
}

// leave ends the process, when nothing is in progress any more. What happens to containers then is
// the next keeper's.
func (k *keeper) leave() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.leaving = true
	for k.working > 0 {
		k.idle.Wait()
	}
	os.Exit(0)
}

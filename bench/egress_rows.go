package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

const (
	onlyNames = `{"defaultAction":"deny","egress":[{"action":"allow","target":"*.bench"}]}`

	egressNames   = 50   // names that make one value of the latency of answers
	egressFlood   = 3000 // names that are asked at once, by clients that each wait for their answer
	egressAsking  = 64
	egressKnown   = 8192 // names whose addresses the sidecar keeps
	egressPackets = 2000 // round trips that make one value of the cost of packets
	egressBytes   = 256 << 20
	busyTime      = 5 * time.Second // for how long processor time is counted
)

// measureEgress measures what the sidecar costs a sandbox, against a container of the same engine
// without one.
func (b *bench) measureEgress(ctx context.Context) (err error) {
	e, err := openEngine(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.clean(ctx, label)) }()
	c, err := b.confine(ctx, e)
	if err != nil {
		return err
	}
	defer c.close()
	floor, err := b.startFloor(ctx)
	if err != nil {
		return err
	}
	defer floor.stop()
	for _, part := range []struct {
		name    string
		measure func(context.Context) error
	}{
		{rowEgressCPU, func(ctx context.Context) error {
			return b.measureEgressIdle(ctx, c,
				floor)
		}},
		// Before thousands of names are known, whose addresses a change has to go through.
		{rowEgressChange,
			func(ctx context.Context) error {
				return b.measureEgressChange(ctx, c,
					rowEgressChange)
			}},
		{rowEgressDNS, func(ctx context.Context) error { return b.measureEgressAnswers(ctx, c) }},
		{rowEgressNames, func(ctx context.Context) error { return b.measureEgressFlood(ctx, c) }},
		{rowEgressChangeMany,
			func(ctx context.Context) error { return b.measureEgressChangeOfMany(ctx, c) }},
		{rowEgressMemory,
			func(ctx context.Context) error { return b.measureEgressMemory(ctx, c, floor) }},
		{rowEgressPacket,
			func(ctx context.Context) error { return b.measureEgressPackets(ctx, c) }},
		{rowEgressStream, func(ctx context.Context) error { return b.measureEgressStream(ctx, c) }},
	} {
		if !b.selected(part.name) {
			continue
		}
		if err := part.measure(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// names counts those that were asked: each is asked once, so that none is known.
var names atomic.Uint32

// unasked is the number of a name that is never asked for.
const unasked = 1<<16 - 1

// resolve asks for a name that was not asked before, and compares the address. It returns the
// number of the name.
func resolve(conn *dns.Conn) (uint32, error) {
	number := names.Add(1) % unasked
	query := new(dns.Msg).SetQuestion(fmt.Sprintf("n%d.bench.", number), dns.TypeA)
	conn.SetDeadline(time.Now().Add(egressWait))
	if err := conn.WriteMsg(query); err != nil {
		return number, err
	}
	reply, err := conn.ReadMsg()
	if err != nil {
		return number, fmt.Errorf("%w: %w", errLost, err)
	}
	if len(reply.Answer) == 1 && reply.Id == query.Id {
		if a, ok := reply.Answer[0].(*dns.A); ok && a.A.Equal(addressOf(number)) {
			return number, nil
		}
	}
	return number, fmt.Errorf("%w: n%d.bench has the answer %v", errLost, number, reply)
}

// resolver is a client of the name server inside a network. What it sends is meant for the real
// server, and the sidecar answers it.
func resolver(ctx context.Context, c *confined, in namespace) (*dns.Conn, error) {
	to := c.neighbour.dns.String()
	if in == c.inside {
		to = net.JoinHostPort(c.neighbour.dns.Addr().String(), "53")
	}
	conn, err := in.dial(ctx, "udp4", to)
	if err != nil {
		return nil, err
	}
	return &dns.Conn{Conn: conn}, nil
}

// measureEgressAnswers measures answers. When the last one of a round is there, its address can be
// connected to, which no address can before its name was asked.
func (b *bench) measureEgressAnswers(ctx context.Context, c *confined) error {
	if err := c.route(ctx); err != nil {
		return err
	}
	if err := c.reach(ctx, unasked); err == nil {
		return fmt.Errorf("%w: an address is reachable whose name was not asked for", errLost)
	}
	side := func(in namespace, each *requests) func(context.Context) (float64, error) {
		return func(ctx context.Context) (float64, error) {
			conn, err := resolver(ctx, c, in)
			if err != nil {
				return 0, err
			}
			defer conn.Close()
			began, last := time.Now(), uint32(0)
			for range egressNames {
				if err := each.time(func() (err error) { last, err = resolve(conn); return err }); err != nil {
					return 0, err
				}
			}
			took := elapsed(began) / egressNames
			if in == c.inside {
				if err := c.reach(ctx, last); err != nil {
					return 0, fmt.Errorf("%w: the address of n%d.bench is not reachable: %w", errLost, last, err)
				}
			}
			return took, nil
		}
	}
	return b.measureBothSides(ctx, rowEgressDNS, b.rounds(30, 5), c, side)
}

// measureBothSides measures the same from inside a sandbox with a sidecar and from a container
// without one.
func (b *bench) measureBothSides(ctx context.Context, name string, rounds int, c *confined,
	side func(namespace, *requests) func(context.Context) (float64, error),
) error {
	var took, floorTook requests
	return b.inTurns(ctx, name, rounds, sides{
		ours: side(c.inside, &took), floor: side(c.free, &floorTook), oursRequests: &took,
		floorRequests: &floorTook,
	})
}

// flood asks for many names at once, and returns how many are answered in a second.
func flood(ctx context.Context, c *confined, in namespace, each *requests) (float64, error) {
	conns := make(chan *dns.Conn, egressAsking)
	for range egressAsking {
		conn, err := resolver(ctx, c, in)
		if err != nil {
			return 0, err
		}
		defer conn.Close()
		conns <- conn
	}
	began := time.Now()
	err := all(ctx, egressFlood, egressAsking, func(context.Context, int) error {
		conn := <-conns
		defer func() { conns <- conn }()
		return each.time(func() error { _, err := resolve(conn); return err })
	})
	return egressFlood / time.Since(began).Seconds(), err
}

func (b *bench) measureEgressFlood(ctx context.Context, c *confined) error {
	return b.measureBothSides(ctx, rowEgressNames, b.rounds(5, 2), c,
		func(in namespace, each *requests) func(context.Context) (float64, error) {
			return func(ctx context.Context) (float64, error) { return flood(ctx, c, in, each) }
		})
}

// allowing is a policy that allows the neighbour, too.
func (c *confined) allowing() string {
	return strings.Replace(onlyNames, `[`,
		fmt.Sprintf(`[{"action":"allow","target":%q},`, c.neighbour.echo.Addr()), 1)
}

// trip sends a packet over a connection and waits until it is back.
func trip(conn net.Conn, packet []byte) error {
	if _, err := conn.Write(packet); err != nil {
		return err
	}
	for got := 0; got < len(packet); {
		n, err := conn.Read(packet[got:])
		if err != nil {
			return err
		}
		got += n
	}
	return nil
}

// measureEgressChange takes the time from the request for a policy until it holds: until an open
// connection that it forbids is cut and none can be opened, and, the other way round, until one can
// be opened again. The slower of the two counts.
func (b *bench) measureEgressChange(ctx context.Context, c *confined, name string) error {
	packet := make([]byte, 64)
	change := func(ctx context.Context, policy string, holds func() bool) (float64, error) {
		began := time.Now()
		if err := c.ask(ctx, http.MethodPut, "/policy", policy, nil); err != nil {
			return 0, err
		}
		for !holds() {
			if time.Since(began) > egressWait {
				return 0, fmt.Errorf("the change does not hold within %v", egressWait)
			}
		}
		return elapsed(began), nil
	}
	ours := func(ctx context.Context) (float64, error) {
		var conn net.Conn
		open := func() bool {
			var err error
			conn, err = c.inside.dial(ctx, "tcp4", c.neighbour.echo.String())
			return err == nil && trip(conn, packet) == nil
		}
		opened, err := change(ctx, c.allowing(), open)
		if err != nil {
			return 0, err
		}
		defer conn.Close()
		cut := func() bool {
			conn.SetDeadline(time.Now().Add(egressWait))
			if trip(conn, packet) == nil {
				return false
			}
			another, err := c.inside.dial(ctx, "tcp4", c.neighbour.echo.String())
			if err == nil {
				another.Close()
			}
			return err != nil
		}
		closed, err := change(ctx, onlyNames, cut)
		return max(opened, closed), err
	}
	floor := func(ctx context.Context) (float64, error) {
		began := time.Now()
		err := c.ask(ctx, http.MethodGet, "/policy", "", nil)
		return elapsed(began), err
	}
	return b.inTurns(ctx, name, b.rounds(100, 10), sides{ours: ours, floor: floor})
}

// measureEgressChangeOfMany measures the same with as many known names as there may be.
func (b *bench) measureEgressChangeOfMany(ctx context.Context, c *confined) error {
	for asked := 0; asked < egressKnown; asked += egressFlood {
		if _, err := flood(ctx, c, c.inside, new(requests)); err != nil {
			return err
		}
	}
	return b.measureEgressChange(ctx, c, rowEgressChangeMany)
}

func (b *bench) measureEgressPackets(ctx context.Context, c *confined) error {
	if err := c.ask(ctx, http.MethodPut, "/policy", c.allowing(), nil); err != nil {
		return err
	}
	side := func(in namespace, each *requests) func(context.Context) (float64, error) {
		return func(ctx context.Context) (float64, error) {
			conn, err := in.dial(ctx, "tcp4", c.neighbour.echo.String())
			if err != nil {
				return 0, err
			}
			defer conn.Close()
			packet := make([]byte, 64)
			began := time.Now()
			for range egressPackets {
				if err := each.time(func() error { return trip(conn, packet) }); err != nil {
					return 0, err
				}
			}
			return egressPackets / time.Since(began).Seconds(), nil
		}
	}
	return b.measureBothSides(ctx, rowEgressPacket, b.rounds(15, 3), c, side)
}

func (b *bench) measureEgressStream(ctx context.Context, c *confined) error {
	if err := c.ask(ctx, http.MethodPut, "/policy", c.allowing(), nil); err != nil {
		return err
	}
	size, buffer := b.bytes(egressBytes), make([]byte, 256<<10)
	side := func(in namespace) func(context.Context) (float64, error) {
		return func(ctx context.Context) (float64, error) {
			conn, err := in.dial(ctx, "tcp4", c.neighbour.sink.String())
			if err != nil {
				return 0, err
			}
			defer conn.Close()
			began := time.Now()
			for sent := int64(0); sent < size; sent += int64(len(buffer)) {
				if _, err := conn.Write(buffer); err != nil {
					return 0, err
				}
			}
			if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
				return 0, err
			}
			if _, err := conn.Read(buffer[:1]); err != nil { // it has all
				return 0, err
			}
			return speed(size, began), nil
		}
	}
	return b.inTurns(ctx, rowEgressStream, b.rounds(9, 3),
		sides{ours: side(c.inside), floor: side(c.free)})
}

// measureEgressMemory reads the memory of the sidecar, both processes, after thousands of names.
func (b *bench) measureEgressMemory(ctx context.Context, c *confined, floor *process) error {
	if _, err := flood(ctx, c, c.inside, new(requests)); err != nil {
		return err
	}
	ours := func(ctx context.Context) (float64, error) {
		pids, err := c.processes()
		if err != nil {
			return 0, err
		}
		if err := pause(ctx, rest); err != nil {
			return 0, err
		}
		sum := 0.0
		for _, pid := range pids {
			mebibytes, err := residentOf(pid)
			if err != nil {
				return 0, err
			}
			sum += mebibytes
		}
		return sum, nil
	}
	return b.inTurns(ctx, rowEgressMemory, b.rounds(5, 2),
		sides{ours: ours,
			floor: func(ctx context.Context) (float64, error) { return atRest(ctx, floor) }})
}

// measureEgressIdle counts the processor time that the sidecar takes while nothing happens, in
// percent of a core.
func (b *bench) measureEgressIdle(ctx context.Context, c *confined, floor *process) error {
	ours := func(ctx context.Context) (float64, error) {
		pids, err := c.processes()
		if err != nil {
			return 0, err
		}
		return processorShare(ctx, pids...)
	}
	return b.inTurns(ctx, rowEgressCPU, b.rounds(3, 1),
		sides{ours: ours,
			floor: func(ctx context.Context) (float64,
				error) {
				return processorShare(ctx, floor.command.Process.Pid)
			}})
}

// processorShare is the processor time that the processes take in the next seconds, in percent of a
// core.
func processorShare(ctx context.Context, pids ...int) (float64, error) {
	before, err := busy(pids)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := pause(ctx, busyTime); err != nil {
		return 0, err
	}
	after, err := busy(pids)
	return 100 * float64(after-before) / float64(time.Since(began)), err
}

// busy is the processor time that all threads of the processes have taken.
func busy(pids []int) (time.Duration, error) {
	var sum time.Duration
	for _, pid := range pids {
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			return 0, err
		}
		for _, thread := range threads {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/schedstat", pid, thread.Name()))
			if err != nil {
				return 0, err
			}
			var running time.Duration // nanoseconds
			if _, err := fmt.Sscan(string(text), &running); err != nil {
				return 0, err
			}
			sum += running
		}
	}
	return sum, nil
}

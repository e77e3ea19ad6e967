// Package egress has the rows of the egress sidecar.
package egress

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/rig"
)

const (
	onlyNames = `{"defaultAction":"deny","egress":[{"action":"allow","target":"*.bench"}]}`

	egressNames   = 50   // names that make one value of the latency of answers
	egressFlood   = 3000 // names that are asked at once, by clients that each wait for their answer
	egressAsking  = 64
	egressKnown   = 8192 // names whose addresses the sidecar keeps
	egressPackets = 2000 // round trips that make one value of the cost of packets
	egressBytes   = 256 << 20
)

// Rows has what the sidecar costs a sandbox, against a container of the same engine without one.
// A change is measured before thousands of names are known, whose addresses it has to go through.
func Rows() measure.Group {
	return measure.Sharing(withSidecarBeside,
		measure.Single(measure.Row{Name: "egress-cpu", What: "processor time of the sidecar, idle, of one core",
			Floor: "a minimal net/http program, idle",
			Unit:  measure.Percent, Target: measure.Ours(0.5)},
			measureEgressIdle),
		measure.Single(measure.Row{Name: "egress-change", What: "a change of the policy until it holds, for open connections too, the slower of both directions",
			Floor: "GET of the policy",
			Unit:  measure.Milliseconds, Target: measure.Tail(100)},
			measureEgressChange),
		measure.Single(measure.Row{Name: "egress-dns", What: "answer for an allowed name, through the egress sidecar, its address reachable",
			Floor: "the same name server asked directly",
			Unit:  measure.Milliseconds, Target: measure.Difference(1)},
			measureEgressAnswers),
		measure.Single(measure.Row{Name: "egress-names", What: "answers for allowed names, 64 asked at once, none lost",
			Floor: "the same name server asked directly",
			Unit:  measure.PerSecond, Target: measure.Ours(1000)},
			measureEgressFlood),
		measure.Single(measure.Row{Name: "egress-change-8192", What: "the same while the addresses of 8192 names are known",
			Floor: "GET of the policy",
			Unit:  measure.Milliseconds, Target: measure.Tail(100)},
			measureEgressChangeOfMany),
		measure.Single(measure.Row{Name: "egress-rss", What: "resident memory of the sidecar (process 1 and daemon), after 3000 names",
			Floor: "a minimal net/http program, idle",
			Unit:  measure.Mebibytes, Target: measure.Ours(20)},
			measureEgressMemory),
		measure.Single(measure.Row{Name: "egress-packets", What: "round trips of 64 bytes on a connection that a policy allows",
			Floor: "the same from a container without a sidecar",
			Unit:  measure.PerSecond, Target: measure.Ratio(0.9)},
			measureEgressPackets),
		measure.Single(measure.Row{Name: "egress-stream", What: "bytes sent on a connection that a policy allows",
			Floor: "the same from a container without a sidecar",
			Unit:  measure.MebiPerSec, Target: measure.Ratio(0.9)},
			measureEgressStream))
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
		return number, fmt.Errorf("%w: %w", measure.ErrLost, err)
	}
	if len(reply.Answer) == 1 && reply.Id == query.Id {
		if a, ok := reply.Answer[0].(*dns.A); ok && a.A.Equal(addressOf(number)) {
			return number, nil
		}
	}
	return number, fmt.Errorf("%w: n%d.bench has the answer %v", measure.ErrLost, number, reply)
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
func measureEgressAnswers(ctx context.Context, run *measure.Run, c *confined) (measure.Pair, error) {
	if err := c.route(ctx); err != nil {
		return measure.Pair{}, err
	}
	if err := c.reach(ctx, unasked); err == nil {
		return measure.Pair{}, fmt.Errorf("%w: an address is reachable whose name was not asked for", measure.ErrLost)
	}
	side := func(in namespace, each *measure.Requests) measure.Figure {
		return func(ctx context.Context) (float64, error) {
			conn, err := resolver(ctx, c, in)
			if err != nil {
				return 0, err
			}
			defer conn.Close()
			began, last := time.Now(), uint32(0)
			for range egressNames {
				if err := each.Time(func() (err error) { last, err = resolve(conn); return err }); err != nil {
					return 0, err
				}
			}
			took := measure.Elapsed(began) / egressNames
			if in == c.inside {
				if err := c.reach(ctx, last); err != nil {
					return 0, fmt.Errorf("%w: the address of n%d.bench is not reachable: %w", measure.ErrLost, last, err)
				}
			}
			return took, nil
		}
	}
	return run.InTurns(ctx, run.Rounds(30, 5), measure.EachSide(c.inside, c.free, side))
}

// flood asks for many names at once, and returns how many are answered in a second.
func flood(ctx context.Context, c *confined, in namespace, each *measure.Requests) (float64, error) {
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
	err := measure.AtOnce(ctx, egressFlood, egressAsking, func(context.Context, int) error {
		conn := <-conns
		defer func() { conns <- conn }()
		return each.Time(func() error { _, err := resolve(conn); return err })
	})
	return egressFlood / time.Since(began).Seconds(), err
}

func measureEgressFlood(ctx context.Context, run *measure.Run, c *confined) (measure.Pair, error) {
	return run.InTurns(ctx, run.Rounds(5, 2), measure.EachSide(c.inside, c.free, func(in namespace, each *measure.Requests) measure.Figure {
		return func(ctx context.Context) (float64, error) { return flood(ctx, c, in, each) }
	}))
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
func measureEgressChange(ctx context.Context, run *measure.Run, c *confined) (measure.Pair, error) {
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
		return measure.Elapsed(began), nil
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
		return measure.Elapsed(began), err
	}
	return run.InTurns(ctx, run.Rounds(100, 10), measure.Sides{Ours: ours, Floor: floor})
}

// measureEgressChangeOfMany measures the same with as many known names as there may be.
func measureEgressChangeOfMany(ctx context.Context, run *measure.Run, c *confined) (measure.Pair, error) {
	for asked := 0; asked < egressKnown; asked += egressFlood {
		if _, err := flood(ctx, c, c.inside, new(measure.Requests)); err != nil {
			return measure.Pair{}, err
		}
	}
	return measureEgressChange(ctx, run, c)
}

func measureEgressPackets(ctx context.Context, run *measure.Run, c *confined) (measure.Pair, error) {
	if err := c.ask(ctx, http.MethodPut, "/policy", c.allowing(), nil); err != nil {
		return measure.Pair{}, err
	}
	side := func(in namespace, each *measure.Requests) measure.Figure {
		return func(ctx context.Context) (float64, error) {
			conn, err := in.dial(ctx, "tcp4", c.neighbour.echo.String())
			if err != nil {
				return 0, err
			}
			defer conn.Close()
			packet := make([]byte, 64)
			began := time.Now()
			for range egressPackets {
				if err := each.Time(func() error { return trip(conn, packet) }); err != nil {
					return 0, err
				}
			}
			return egressPackets / time.Since(began).Seconds(), nil
		}
	}
	return run.InTurns(ctx, run.Rounds(15, 3), measure.EachSide(c.inside, c.free, side))
}

func measureEgressStream(ctx context.Context, run *measure.Run, c *confined) (measure.Pair, error) {
	if err := c.ask(ctx, http.MethodPut, "/policy", c.allowing(), nil); err != nil {
		return measure.Pair{}, err
	}
	size, buffer := run.Bytes(egressBytes), make([]byte, 256<<10)
	side := func(in namespace) measure.Figure {
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
			return measure.Speed(size, began), nil
		}
	}
	return run.InTurns(ctx, run.Rounds(9, 3),
		measure.Sides{Ours: side(c.inside), Floor: side(c.free)})
}

// measureEgressMemory reads the memory of the sidecar, both processes, after thousands of names.
func measureEgressMemory(ctx context.Context, run *measure.Run, c *confined) (measure.Pair, error) {
	if _, err := flood(ctx, c, c.inside, new(measure.Requests)); err != nil {
		return measure.Pair{}, err
	}
	ours := func(ctx context.Context) (float64, error) {
		pids, err := c.processes()
		if err != nil {
			return 0, err
		}
		if err := measure.Pause(ctx, rig.Rest); err != nil {
			return 0, err
		}
		sum := 0.0
		for _, pid := range pids {
			mebibytes, err := rig.ResidentOf(pid)
			if err != nil {
				return 0, err
			}
			sum += mebibytes
		}
		return sum, nil
	}
	return run.InTurns(ctx, run.Rounds(5, 2),
		measure.Sides{Ours: ours,
			Floor: c.floor.AtRest})
}

// measureEgressIdle counts the processor time that the sidecar takes while nothing happens, in
// percent of a core.
func measureEgressIdle(ctx context.Context, run *measure.Run, c *confined) (measure.Pair, error) {
	ours := func(ctx context.Context) (float64, error) {
		pids, err := c.processes()
		if err != nil {
			return 0, err
		}
		return rig.ProcessorShare(ctx, pids...)
	}
	return run.InTurns(ctx, run.Rounds(3, 1),
		measure.Sides{Ours: ours,
			Floor: func(ctx context.Context) (float64, error) {
				return rig.ProcessorShare(ctx, c.floor.Command.Process.Pid)
			}})
}

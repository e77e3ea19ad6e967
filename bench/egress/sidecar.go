package egress

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/rig"
)

const (
	egressToken = "the-token-of-the-sidecar-of-the-bench"
	egressWait  = 30 * time.Second
)

// confined is the network of a sandbox with a sidecar, and beside it that of a container without
// one.
type confined struct {
	pid       int    // of the sidecar's process 1
	api       string // URL
	client    *http.Client
	inside    namespace
	free      namespace
	at        netip.Addr // of the container without a sidecar
	neighbour *neighbour
	named     net.Listener // behind the addresses of names, once they are routed
	floor     *rig.Process // a minimal server
}

// withSidecarBeside starts both containers and the floor of a server, and removes them.
func withSidecarBeside(ctx context.Context, run *measure.Run, do func(*confined) error) (err error) {
	e, err := rig.OpenEngine(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Clean(ctx, rig.Label)) }()
	c, err := confine(ctx, e)
	if err != nil {
		return err
	}
	defer c.close()
	if c.floor, err = rig.StartFloor(ctx, run); err != nil {
		return err
	}
	defer c.floor.Stop()
	return do(c)
}

// confine starts both containers. The sidecar's policy allows the names below bench. and nothing
// else.
func confine(ctx context.Context, e *rig.Engine) (*confined, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("only root can enter the network of a container")
	}
	plain, err := e.Launch(ctx)
	if err != nil {
		return nil, err
	}
	free, err := inspect(ctx, e, plain)
	if err != nil {
		return nil, err
	}
	near, err := newNeighbour(free.gateway)
	if err != nil {
		return nil, err
	}
	c := &confined{neighbour: near, client: &http.Client{Transport: &http.Transport{}},
		free: namespaceOf(free.pid), at: free.address}
	if err := c.launch(ctx, e); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *confined) close() {
	c.client.CloseIdleConnections()
	c.neighbour.close()
	if c.named != nil {
		c.named.Close() // whatever it says, the run is over
	}
}

// route leads the addresses of names from inside to the container without a sidecar, which sends
// back what it gets there. It changes the networks of both containers, and that of the host not.
func (c *confined) route(ctx context.Context) error {
	if err := c.free.enter(func() (err error) {
		c.named, err = net.Listen("tcp4", ":0")
		return err
	}); err != nil {
		return err
	}
	go accept(c.named, echo)
	for in, route := range map[namespace][]string{
		c.free:   {"local", namedNetwork, "dev", "lo"},
		c.inside: {namedNetwork, "via", c.at.String()},
	} {
		if err := in.enter(func() error {
			out, err := exec.CommandContext(ctx, "ip", append([]string{"route", "add"}, route...)...).CombinedOutput()
			if err != nil {
				err = fmt.Errorf("ip route add %s: %w: %s", strings.Join(route, " "), err, bytes.TrimSpace(out))
			}
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// reach connects from inside to the address of a name, and has a byte sent back.
func (c *confined) reach(ctx context.Context, number uint32) error {
	_, port, err := net.SplitHostPort(c.named.Addr().String())
	if err != nil {
		return err
	}
	conn, err := c.inside.dial(ctx, "tcp4", net.JoinHostPort(addressOf(number).String(), port))
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(egressWait))
	return trip(conn, []byte{1})
}

// launch starts the sidecar and returns when its firewall is installed.
func (c *confined) launch(ctx context.Context, e *rig.Engine) error {
	var created struct{ ID string }
	err := e.Call(ctx, http.MethodPost, "/containers/create", map[string]any{
		"Image":  rig.EgressImage,
		"Labels": map[string]string{rig.Label: "1"},
		"Env": []string{"EGRESS_ACCESS_TOKEN=" + egressToken,
			"EGRESS_UPSTREAM=" + c.neighbour.dns.String(), "EGRESS_POLICY=" + onlyNames},
		"ExposedPorts": map[string]any{"18080/tcp": map[string]any{}},
		"HostConfig": map[string]any{
			"PortBindings": map[string]any{"18080/tcp": []map[string]string{{"HostIp": "127.0.0.1",
				"HostPort": ""}}},
			"CapDrop": []string{"ALL"}, "CapAdd": []string{"NET_ADMIN"},
			"Sysctls": map[string]string{"net.ipv6.conf.all.disable_ipv6": "1"},
		},
	}, &created)
	if err != nil {
		return err
	}
	if err := e.Call(ctx, http.MethodPost, "/containers/"+created.ID+"/start", nil,
		nil); err != nil {
		return err
	}
	found, err := inspect(ctx, e, created.ID)
	if err != nil {
		return err
	}
	c.pid, c.inside, c.api = found.pid, namespaceOf(found.pid),
		"http://"+net.JoinHostPort("127.0.0.1", found.port)
	for deadline := time.Now().Add(egressWait); ; time.Sleep(5 * time.Millisecond) {
		if err = c.ask(ctx, http.MethodGet, "/healthz", "", nil); err == nil ||
			time.Now().After(deadline) {
			return err
		}
	}
}

// located is where a container is.
type located struct {
	pid     int        // of its process 1
	port    string     // on the host, of the port that it publishes
	address netip.Addr // on the engine's bridge
	gateway netip.Addr // the host, on the same
}

func inspect(ctx context.Context, e *rig.Engine, id string) (located, error) {
	var found struct {
		State           struct{ Pid int }
		NetworkSettings struct {
			Ports    map[string][]struct{ HostPort string }
			Networks map[string]struct{ Gateway, IPAddress string }
		}
	}
	if err := e.Call(ctx, http.MethodGet, "/containers/"+id+"/json", nil, &found); err != nil {
		return located{}, err
	}
	at := located{pid: found.State.Pid}
	for _, bindings := range found.NetworkSettings.Ports {
		if len(bindings) > 0 {
			at.port = bindings[0].HostPort
		}
	}
	bridge := found.NetworkSettings.Networks["bridge"]
	var err, addressErr error
	at.gateway, err = netip.ParseAddr(bridge.Gateway)
	at.address, addressErr = netip.ParseAddr(bridge.IPAddress)
	err = errors.Join(err, addressErr)
	if at.pid == 0 || at.port == "" || err != nil {
		return at,
			fmt.Errorf("container %s does not run as it should: process %d, port %q, addresses: %w",
				id, at.pid, at.port, err)
	}
	return at, nil
}

// ask sends a request to the sidecar's API.
func (c *confined) ask(ctx context.Context, method, path, body string, out any) error {
	request, err := http.NewRequestWithContext(ctx, method, c.api+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("X-EGRESS-ACCESS-TOKEN", egressToken)
	response, err := rig.Send(c.client, request, http.StatusOK)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil || out == nil {
		return err
	}
	return json.Unmarshal(data, out)
}

// processes are the ids of process 1 of the sidecar and of the egress daemon that it has started.
func (c *confined) processes() ([]int, error) {
	// threads start processes, too
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", c.pid))
	if err != nil {
		return nil, err
	}
	pids := []int{c.pid}
	for _, task := range tasks {
		children, err := os.ReadFile(task)
		if err != nil {
			return nil, err
		}
		for _, field := range bytes.Fields(children) {
			pid, err := strconv.Atoi(string(field))
			if err != nil {
				return nil, err
			}
			pids = append(pids, pid)
		}
	}
	if len(pids) < 2 {
		return nil, errors.New("the sidecar has no egress daemon")
	}
	return pids, nil
}

// namespace is the network of a container.
type namespace string

func namespaceOf(pid int) namespace { return namespace(fmt.Sprintf("/proc/%d/ns/net", pid)) }

// dial connects from within. The socket stays there, wherever it is used.
func (n namespace) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = n.enter(func() (err error) {
		conn, err = (&net.Dialer{Timeout: egressWait}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// enter calls do within. What it opens and starts stays there.
func (n namespace) enter(do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine, for it cannot go back
		file, err := os.Open(string(n))
		if err != nil {
			done <- err
			return
		}
		defer file.Close()
		if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter the container's network: %w", err)
			return
		}
		done <- do()
	}()
	return <-done
}

package network

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/test/wait"
)

// service is what a service says before it is killed.
type service struct {
	Running []Attachment
	PIDs    []int
	Other   Attachment // attached, and its container was not started
}

// beService opens a network, starts two containers, attaches a third one, and waits to be killed.
// Its descriptor 3 keeps the containers alive.
func beService() {
	ctx := context.Background()
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	n, err := Open(ctx, Options{Bridge: os.Getenv("BRIDGE"), Subnet: netip.MustParsePrefix("10.80.0.0/16"),
		Directory: os.Getenv("FOLDER"), Shared: os.Getenv("FOLDER"), Ready: 4, Quarantine: time.Hour, Logger: zerolog.New(os.Stderr)}, nil)
	fail(err)
	var s service
	for _, name := range []string{"one", "two"} {
		ns, err := n.Attach(ctx, name, []int{containerPort}, netip.Addr{})
		fail(err)
		process, err := startServer(name, ns.Path, os.NewFile(3, "alive"))
		fail(err)
		n.Started(name)
		s.Running = append(s.Running, ns.Attachment)
		s.PIDs = append(s.PIDs, process.Process.Pid)
	}
	ns, err := n.Attach(ctx, "three", []int{containerPort}, netip.Addr{})
	fail(err)
	s.Other = ns.Attachment
	fail(json.NewEncoder(os.Stdout).Encode(s))
	select {}
}

// TestCrash kills a service with SIGKILL: the next one takes over what runs, and nothing else is
// left.
func TestCrash(t *testing.T) {
	o := options(t, "crash0")
	o.Subnet = netip.MustParsePrefix("10.80.0.0/16")
	ends, alive, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = alive.Close() }) // the containers end with it
	process := exec.Command("/proc/self/exe")
	process.Env = []string{modeVariable + "=" + modeCrash, "BRIDGE=" + o.Bridge, "FOLDER=" + o.Directory}
	process.Stderr, process.ExtraFiles = os.Stderr, []*os.File{ends}
	output, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	_ = ends.Close()
	line, err := bufio.NewReader(output).ReadBytes('\n')
	_ = process.Process.Kill()
	_ = process.Wait()
	var was service
	if err == nil {
		err = json.Unmarshal(line, &was)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range was.PIDs {
		wait.Until(t, "the container listens", func() bool { return listens(pid) })
	}
	one, two := was.Running[0], was.Running[1]
	wantAnswer(t, outside, at(hostAddress, one.Ports[containerPort]), "one "+outsideAddress) // no service runs

	// The second container counts as gone, although its process lives: it loses everything.
	o.Ready = 0
	n := openNetwork(t, o, one)
	if n.bridge.portName(one.Address) != ports(t, n)[0] || len(ports(t, n)) != 1 {
		t.Errorf("the veth pairs are %v, want that of %v", ports(t, n), one.Address)
	}
	if left := neighbours(t, n); len(left) != 1 {
		t.Errorf("the neighbours are %v", left)
	}
	for _, set := range []string{membersSet, portsMap} {
		if got := elements(t, n, set); got != 1 {
			t.Errorf("%s has %d elements, want 1", set, got)
		}
	}
	wantAnswer(t, "", at("127.0.0.1", one.Ports[containerPort]), "one "+n.bridge.gateway.String())
	wantAnswer(t, outside, at(hostAddress, one.Ports[containerPort]), "one "+outsideAddress)
	wantAnswer(t, fmt.Sprintf("/proc/%d/ns/net", was.PIDs[0]), at(outsideAddress, outsidePort), "outside "+hostAddress)
	wantSilence(t, "", at("127.0.0.1", two.Ports[containerPort]))
	if _, err := bind(netip.Addr{}, one.Ports[containerPort]); err == nil {
		t.Error("the port of the running container is not reserved")
	}
	for i := range 3 { // none of the addresses that were used is given again
		ns, err := n.Attach(t.Context(), fmt.Sprint("new", i), nil, netip.Addr{})
		if err != nil {
			t.Fatal(err)
		}
		if ns.Address == one.Address || ns.Address == two.Address || ns.Address == was.Other.Address {
			t.Errorf("%v is given again", ns.Address)
		}
	}
	// A running container keeps its network when the service closes, and loses it when it is
	// detached.
	n.Close()
	wantAnswer(t, outside, at(hostAddress, one.Ports[containerPort]), "one "+outsideAddress)
	n = openNetwork(t, o, one)
	if err := n.Detach("one"); err != nil {
		t.Fatal(err)
	}
	wantSilence(t, outside, at(hostAddress, one.Ports[containerPort]))
	_ = alive.Close()
}

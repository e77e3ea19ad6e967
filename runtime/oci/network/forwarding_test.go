package network

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sync/errgroup"

	"sandbox.internal/test/wait"
)

// iptables runs a program of iptables in the tests' namespace and returns what it prints.
func iptables(t *testing.T, command string) string {
	t.Helper()
	fields := strings.Split(command, " ")
	for i := range fields {
		fields[i] = strings.ReplaceAll(fields[i], "\u00a0", " ") // one argument with a space
	}
	process := exec.Command(fields[0], fields[1:]...)
	var complaints strings.Builder // and warnings
	process.Stderr = &complaints
	output, err := process.Output()
	if err != nil {
		t.Fatalf("%s: %v: %s", command, err, &complaints)
	}
	return string(output)
}

// likeDocker makes the rules of a Docker Engine that are about forwarding.
func likeDocker(t *testing.T) {
	t.Helper()
	for _, arguments := range []string{"-P FORWARD DROP", "-N DOCKER-USER", "-A DOCKER-USER -j RETURN",
		"-I FORWARD -j DOCKER-USER", "-A FORWARD -i docker0 ! -o docker0 -j ACCEPT"} {
		iptables(t, "iptables "+arguments)
	}
}

func noRules(t *testing.T, program string) {
	t.Helper()
	for _, arguments := range []string{"-P FORWARD ACCEPT", "-F", "-X"} {
		iptables(t, program+" "+arguments)
	}
}

func docker(t *testing.T) string { return iptables(t, "iptables -S DOCKER-USER") }

func TestDocker(t *testing.T) {
	defer noRules(t, "iptables")
	start := func() {
		likeDocker(t)
		iptables(t, "iptables -I DOCKER-USER -s 192.0.2.99 -j DROP") // the administrator's
	}
	start()
	before := docker(t)
	// Of a service that was killed, and whose bridge is gone.
	iptables(t, "iptables -I DOCKER-USER -i gone0 -m comment --comment sandbox.internal\u00a0gone0 -j ACCEPT")
	n := openNetwork(t, options(t, "docker9"))
	a := startContainer(t, n, "a", netip.Addr{})
	reaches := func() {
		t.Helper()
		wantAnswer(t, a.ns, at(outsideAddress, outsidePort), "outside "+hostAddress)
		wantAnswer(t, outside, at(hostAddress, a.Ports[containerPort]), "a "+outsideAddress)
	}
	reaches()
	want := `-N DOCKER-USER
-A DOCKER-USER -s 192.0.2.99/32 -j DROP
-A DOCKER-USER -i docker9 -m comment --comment "sandbox.internal docker9" -j ACCEPT
-A DOCKER-USER -o docker9 -m comment --comment "sandbox.internal docker9" -j ACCEPT
-A DOCKER-USER -j RETURN
`
	if got := docker(t); got != want {
		t.Errorf("the rules are\n%swant\n%s", got, want)
	}
	if problem := n.Problem(); problem != "" {
		t.Errorf("Problem: %s", problem)
	}

	t.Run("rules that are removed come back", func(t *testing.T) {
		noRules(t, "iptables")
		start()
		wait.Until(t, "the rules are back", func() bool { return docker(t) == want })
		reaches()
	})
	n.Close()
	if got := docker(t); got != want {
		t.Errorf("with a running container the rules are\n%s", got)
	}
	reaches()
	n = openNetwork(t, options(t, "docker9"), a.Attachment)
	if got := docker(t); got != want {
		t.Errorf("of a service that opens again the rules are\n%s", got)
	}
	a.stop()
	closeClean(t, n)
	if got := docker(t); got != before {
		t.Errorf("after Close the rules are\n%swant\n%s", got, before)
	}
}

// TestSeveralSweepAtOnce: services that start together find the same rules of a bridge that is
// gone.
func TestSeveralSweepAtOnce(t *testing.T) {
	defer noRules(t, "iptables")
	likeDocker(t)
	for i := range 40 {
		iptables(t, fmt.Sprintf("iptables -I DOCKER-USER -i gone%d -m comment --comment sandbox.internal\u00a0gone%[1]d -j ACCEPT", i))
	}
	group := errgroup.Group{}
	for range 8 {
		group.Go(sweepAccepts)
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	if want := "-N DOCKER-USER\n-A DOCKER-USER -j RETURN\n"; docker(t) != want {
		t.Errorf("the rules are\n%swant\n%s", docker(t), want)
	}
}

// TestOtherContainers: our accept rules open no way to containers of the Docker Engine, or of
// others.
func TestOtherContainers(t *testing.T) {
	defer noRules(t, "iptables")
	likeDocker(t)
	iptables(t, "iptables -A FORWARD -o docker0 -j ACCEPT") // as for an address that is published
	theirs, address := otherContainer(t, "10.81.0.0/16")
	err := in(theirs, func() error {
		listener, err := net.Listen("tcp", fmt.Sprintf(":%d", containerPort))
		if err == nil {
			go answer(listener, "theirs")
			t.Cleanup(func() { _ = listener.Close() })
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	n := openNetwork(t, options(t, "others0"))
	a := startContainer(t, n, "a", netip.Addr{})
	wantAnswer(t, "", at(address, containerPort), "theirs "+address.Prev().String())
	wantSilence(t, a.ns, at(address, containerPort))
	// They reach what is published, as any client of the host.
	wantAnswer(t, theirs, at(hostAddress, a.Ports[containerPort]), "a "+address.String())
}

// removeTable removes a table and keeps its network from mending it.
func removeTable(t *testing.T, name string) {
	t.Helper()
	removeTableOf(t, nftables.TableFamilyINet, name)
}

func removeTableOf(t *testing.T, family nftables.TableFamily, name string) {
	t.Helper()
	conn, err := connect()
	if err != nil {
		t.Fatal(err)
	}
	conn.DelTable(&nftables.Table{Name: name, Family: family})
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
}

// TestProblem: what is typed as the message says mends it.
func TestProblem(t *testing.T) {
	n := openNetwork(t, options(t, "problem0"))
	a := startContainer(t, n, "a", netip.Addr{})
	works := func() {
		t.Helper()
		if problem := n.Problem(); problem != "" {
			t.Errorf("Problem: %s", problem)
		}
		wantAnswer(t, a.ns, at(outsideAddress, outsidePort), "outside "+hostAddress)
		wantAnswer(t, outside, at(hostAddress, a.Ports[containerPort]), "a "+outsideAddress)
	}
	works()
	for name, c := range map[string]struct {
		program string
		before  []string
		want    string
	}{
		"iptables":                  {"iptables", []string{"-P FORWARD DROP"}, "iptables -I FORWARD -i problem0"},
		"iptables, a rule":          {"iptables", []string{"-A FORWARD -j REJECT"}, "iptables -I FORWARD -i problem0"},
		"iptables-legacy":           {"iptables-legacy", []string{"-P FORWARD DROP"}, "iptables-legacy -I FORWARD -i problem0"},
		"iptables-legacy, Docker's": {"iptables-legacy", []string{"-P FORWARD DROP", "-N DOCKER-USER", "-I FORWARD -j DOCKER-USER", "-A DOCKER-USER -j RETURN"}, "iptables-legacy -I DOCKER-USER -i problem0"},
	} {
		t.Run(name, func(t *testing.T) {
			defer noRules(t, c.program)
			for _, arguments := range c.before {
				iptables(t, c.program+" "+arguments)
			}
			problem := n.Problem()
			_, advice, _ := strings.Cut(problem, ": ")
			if !strings.HasPrefix(advice, c.want) {
				t.Fatalf("Problem: %q, want what to type: %q", problem, c.want)
			}
			wantSilence(t, a.ns, at(outsideAddress, outsidePort))
			for command := range strings.SplitSeq(advice, " && ") {
				iptables(t, command)
			}
			works()
		})
	}
	t.Run("a table of nftables", func(t *testing.T) {
		dropForwarded(t, "firewalld")
		if problem := n.Problem(); !strings.Contains(problem, "firewall-cmd --permanent --zone=trusted --add-interface=problem0") {
			t.Errorf("Problem: %q", problem)
		}
	})
	t.Run("forwarding is off", func(t *testing.T) {
		if _, err := setSysctl("ipv4/ip_forward", "0"); err != nil {
			t.Fatal(err)
		}
		if problem := n.Problem(); !strings.Contains(problem, "sysctl -w net.ipv4.ip_forward=1") {
			t.Errorf("Problem: %q", problem)
		}
		if err := setSysctls(n.bridge.name, n.log); err != nil {
			t.Fatal(err)
		}
		works()
	})
}

// dropForwarded makes a table that drops what is forwarded, until the test ends.
func dropForwarded(t *testing.T, name string) {
	t.Helper()
	conn, err := connect()
	if err != nil {
		t.Fatal(err)
	}
	table := conn.AddTable(&nftables.Table{Name: name, Family: nftables.TableFamilyINet})
	policy := nftables.ChainPolicyAccept
	forward := conn.AddChain(&nftables.Chain{Name: "filter_FORWARD", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityRef(10), Policy: &policy})
	conn.AddRule(&nftables.Rule{Table: table, Chain: forward, Exprs: []expr.Any{&expr.Reject{Type: 2, Code: 3}}})
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeTable(t, name) })
}

// TestReload: a firewall that is loaded again removes every table, ours too.
func TestReload(t *testing.T) {
	n := openNetwork(t, options(t, "reload0"))
	a, b := startContainer(t, n, "a", netip.Addr{}), startContainer(t, n, "b", netip.Addr{})
	listenOnHost(t, hostPort)
	for name, change := range map[string]func(){
		"all tables":  func() { flushAll(t) },
		"the table":   func() { removeTable(t, "reload0") },
		"some chains": func() { flushForward(t, n) },
	} {
		t.Run(name, func(t *testing.T) {
			change()
			wait.Until(t, "the table is complete", func() bool { return complete(n) })
			wantAnswer(t, a.ns, at(outsideAddress, outsidePort), "outside "+hostAddress)
			wantAnswer(t, outside, at(hostAddress, b.Ports[containerPort]), "b "+outsideAddress)
			wantSilence(t, a.ns, at(hostAddress, hostPort))
		})
	}
	t.Run("between two containers", func(t *testing.T) {
		flushAll(t)
		startContainer(t, n, "c", netip.Addr{})
		flushAll(t)
		if err := n.Detach("c"); err != nil {
			t.Error(err)
		}
	})
}

func complete(n *Network) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.filter.complete()
}

func flushAll(t *testing.T) {
	t.Helper()
	conn, err := connect()
	if err != nil {
		t.Fatal(err)
	}
	conn.FlushRuleset()
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
}

func flushForward(t *testing.T, n *Network) {
	t.Helper()
	conn, err := connect()
	if err != nil {
		t.Fatal(err)
	}
	conn.FlushChain(&nftables.Chain{Name: "forward", Table: n.filter.table})
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
}

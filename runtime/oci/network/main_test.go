package network

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/rs/zerolog"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"sandbox.internal/test/wait"
)

// Modes in which the test program is run again.
const (
	modeVariable = "SANDBOX_NETWORK_TEST"
	modeTests    = "tests" // the tests, in a network namespace of their own
	modeServe    = "serve" // a container: answers on containerPort until it is killed
	modeCrash    = "crash" // a service, to be killed
)

// The network around the tests: a host with one uplink, and the outside.
const (
	hostAddress    = "198.51.100.1"
	outsideAddress = "198.51.100.2"
	containerPort  = 8080
	outsidePort    = 7000
	hostPort       = 9000
)

// outside is the namespace that plays the outside, and outsideServer what answers there.
var (
	outside       string
	outsideServer net.Listener
)

// TestMain runs the tests in a network namespace of their own: the machine's network is not
// touched.
func TestMain(m *testing.M) {
	switch os.Getenv(modeVariable) {
	case modeTests:
		if err := makeOutside(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		code := m.Run()
		_ = outsideServer.Close()
		if err := goleak.Find(); err != nil && code == 0 {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		os.Exit(code)
	case modeServe:
		serveForever()
	case modeCrash:
		beService()
	default:
		os.Exit(runAgain())
	}
}

func runAgain() int {
	self := exec.Command("/proc/self/exe", os.Args[1:]...)
	self.Env = append(os.Environ(), modeVariable+"="+modeTests)
	self.Stdin, self.Stdout, self.Stderr = os.Stdin, os.Stdout, os.Stderr
	self.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // Pdeathsig is about the thread
	err := self.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return exit.ExitCode()
	case err != nil:
		fmt.Fprintln(os.Stderr, "the tests need root:", err)
		return 1
	}
	return 0
}

// makeOutside connects this namespace to another one, its default route, where a server answers.
func makeOutside() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	// Frames between ports of a bridge do not pass the table, as on a host without br_netfilter.
	if _, err := setSysctl("bridge/bridge-nf-call-iptables", "0"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	fd, err := newNamespace()
	if err != nil {
		return err
	}
	outside = fmt.Sprintf("/proc/self/fd/%d", fd)
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "up0"}, PeerName: "down0",
		PeerNamespace: netlink.NsFd(fd)}
	if err := netlink.LinkAdd(pair); err != nil {
		return err
	}
	if err := give("up0", hostAddress); err != nil {
		return err
	}
	err = in(outside, func() error { return give("down0", outsideAddress) })
	if err != nil {
		return err
	}
	if err := netlink.RouteAdd(&netlink.Route{Dst: ipNet(netip.MustParsePrefix("0.0.0.0/0")),
		Gw: net.ParseIP(outsideAddress)}); err != nil {
		return err
	}
	return in(outside, func() (err error) {
		outsideServer, err = net.Listen("tcp", fmt.Sprintf(":%d", outsidePort))
		if err == nil {
			go answer(outsideServer, "outside")
		}
		return err
	})
}

// newNamespace makes a network namespace on a thread that ends with it.
func newNamespace() (int, error) {
	made := make(chan opening)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() { // the first thread must stay where it is
			fd, err := newNamespace()
			runtime.UnlockOSThread()
			made <- opening{fd: fd, err: err}
			return
		}
		fd, _, err := unshareNetwork()
		made <- opening{fd: fd, err: err}
	}()
	o := <-made
	return o.fd, o.err
}

func give(name, address string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	own := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(netip.MustParseAddr(address), 24))}
	if err := netlink.AddrAdd(link, own); err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

// in runs do in another network namespace, on a thread that ends with it.
func in(namespace string, do func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() { // the first thread must stay where it is
			err := in(namespace, do)
			runtime.UnlockOSThread()
			done <- err
			return
		}
		fd, err := unix.Open(namespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			_ = unix.Close(fd)
		}
		if err == nil {
			err = do()
		}
		done <- err
	}()
	return <-done
}

// answer sends each client the name and the client's address, until the listener is closed.
func answer(listener net.Listener, name string) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		client, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
		_, _ = fmt.Fprintf(conn, "%s %s", name, client)
		_ = conn.Close()
	}
}

// serveForever answers until its standard input ends.
func serveForever() {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	listener, err := net.Listen("tcp", fmt.Sprintf(":%d", containerPort))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	answer(listener, os.Getenv("NAME"))
}

// refusal is how long a test waits for a packet that must not arrive.
const refusal = 300 * time.Millisecond

func wantAnswer(t *testing.T, namespace, address, want string) {
	t.Helper()
	got, err := ask(namespace, address, wait.Patience())
	if err != nil || got != want {
		t.Errorf("%s answers %q, %v; want %q", address, got, err, want)
	}
}

// ask returns what the server at the address answers to a client in the namespace; "" is this one.
func ask(namespace, address string, timeout time.Duration) (string, error) {
	var got string
	do := func() error {
		conn, err := net.DialTimeout("tcp4", address, timeout)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(timeout))
		all, err := io.ReadAll(conn)
		got = string(all)
		return err
	}
	if namespace == "" {
		err := do()
		return got, err
	}
	err := in(namespace, do)
	return got, err
}

func wantSilence(t *testing.T, namespace, address string) {
	t.Helper()
	if got, err := ask(namespace, address, refusal); err == nil {
		t.Errorf("%s answers %q; want nothing", address, got)
	}
}

// options are those of a network of this test's own.
func options(t testing.TB, bridge string) Options {
	return Options{
		Bridge: bridge, Subnet: netip.MustParsePrefix("10.77.0.0/16"),
		Directory: filepath.Join(t.TempDir(), "network"), Shared: t.TempDir(), Ready: 2, Quarantine: time.Hour,
		Logger: zerolog.New(zerolog.NewTestWriter(t)),
	}
}

// openNetwork opens a network that is closed after the test, when nothing may be left.
func openNetwork(t *testing.T, o Options, inUse ...Attachment) *Network {
	t.Helper()
	n, err := Open(t.Context(), o, inUse)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeClean(t, n) })
	return n
}

// closeClean detaches what is attached, closes, and looks for what is left.
func closeClean(t *testing.T, n *Network) {
	t.Helper()
	for _, name := range attachedNames(n) {
		if err := n.Detach(name); err != nil {
			t.Error(err)
		}
	}
	n.Close()
	if _, err := netlink.LinkByName(n.bridge.name); err == nil {
		t.Errorf("the bridge %s is left", n.bridge.name)
	}
	for _, table := range tables(t) {
		if table == n.bridge.name {
			t.Errorf("the table %s is left", table)
		}
	}
	wait.Until(t, "the veth pairs are removed", func() bool { return len(ports(t, n)) == 0 })
}

func attachedNames(n *Network) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil
	}
	var names []string
	for name := range n.attached {
		names = append(names, name)
	}
	return names
}

func tables(t *testing.T) []string {
	t.Helper()
	conn, err := connect()
	if err != nil {
		t.Fatal(err)
	}
	all, err := conn.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, table := range all {
		names = append(names, table.Name)
	}
	return names
}

// ports are the names of the host's ends of veth pairs.
func ports(t testing.TB, n *Network) []string {
	t.Helper()
	links, err := list(netlink.LinkList)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, link := range links {
		if _, ok := n.bridge.portAddress(link.Attrs().Name); ok {
			names = append(names, link.Attrs().Name)
		}
	}
	return names
}

// elements are how many elements a set of the table has.
func elements(t *testing.T, n *Network, name string) int {
	t.Helper()
	conn, err := connect()
	if err != nil {
		t.Fatal(err)
	}
	all, err := conn.GetSetElements(&nftables.Set{Table: n.filter.table, Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// container is an attached namespace in which a process answers on containerPort.
type container struct {
	Namespace
	gateway netip.Addr
	ns      string // path of its namespace, while the process lives
	pid     int
	stop    func() // ends the process
}

// startContainer attaches a container that publishes containerPort.
func startContainer(t *testing.T, n *Network, name string, publish netip.Addr) container {
	t.Helper()
	ns, err := n.Attach(t.Context(), name, []int{containerPort}, publish)
	if err != nil {
		t.Fatal(err)
	}
	ends, alive, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	process, err := startServer(name, ns.Path, ends)
	_ = ends.Close()
	if err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceFunc(func() { _, _, _ = process.Process.Kill(), process.Wait(), alive.Close() })
	t.Cleanup(stop)
	n.Started(name)
	c := container{ns, n.bridge.gateway, fmt.Sprintf("/proc/%d/ns/net", process.Process.Pid), process.Process.Pid, stop}
	wait.Until(t, name+" listens", func() bool { return listens(c.pid) })
	return c
}

func startServer(name, namespace string, alive *os.File) (*exec.Cmd, error) {
	process := exec.Command("/proc/self/exe")
	process.Env = []string{modeVariable + "=" + modeServe, "NAME=" + name}
	process.Stdin, process.Stderr = alive, os.Stderr
	return process, in(namespace, process.Start)
}

// listens reports whether a socket listens on containerPort in the process's namespace.
func listens(pid int) bool {
	for _, table := range []string{"tcp", "tcp6"} {
		content, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		for line := range strings.Lines(string(content)) {
			fields := strings.Fields(line)
			if len(fields) > 3 && strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", containerPort)) && fields[3] == "0A" {
				return true
			}
		}
	}
	return false
}

func at(address any, port int) string { return fmt.Sprintf("%v:%d", address, port) }

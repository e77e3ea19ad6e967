package enginetest

import (
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/test/wait"
)

func (s *suite) testEnvironment(t *testing.T) {
	spec := s.spec("env", "FROM_IMAGE", "BOTH", "FROM_SPEC", "STOP")
	spec.StopSignalVariable = "STOP"
	spec.Env = map[string]string{"BOTH": "spec", "FROM_SPEC": "a=b c\n$d"}
	if got, want := s.output(t, spec), "FROM_IMAGE=image\nBOTH=spec\nFROM_SPEC=a=b c\n$d\nSTOP=SIGUSR1\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func (s *suite) testPublish(t *testing.T) {
	spec := s.spec("serve", "8080")
	spec.Publish = []int{8080, 9090}
	spec.PublishIP = "127.0.0.1"
	id := s.start(t, spec)
	ports := s.inspect(t, id).Ports
	if len(ports) != 2 || ports[8080] == 0 || ports[9090] == 0 {
		t.Fatalf("ports are %v", ports)
	}
	read := func() string {
		connection, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[8080])))
		if err != nil {
			return err.Error()
		}
		defer func() { _ = connection.Close() }()
		said, _ := io.ReadAll(connection)
		return string(said)
	}
	wait.Until(t, "the published port answers", func() bool { return read() == "hello from 8080" })
	if err := s.engine.Freeze(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if frozen := s.inspect(t, id).Ports; frozen[8080] != ports[8080] {
		t.Errorf("frozen, the ports are %v instead of %v", frozen, ports)
	}
}

// testPublishSamePort: the engine chooses the port, so any number of containers may publish the
// same one.
func (s *suite) testPublishSamePort(t *testing.T) {
	seen := map[int]bool{}
	for range 3 {
		spec := s.spec("sleep")
		spec.Publish = []int{8080} // on every address
		seen[s.inspect(t, s.start(t, spec)).Ports[8080]] = true
	}
	if len(seen) != 3 || seen[0] {
		t.Errorf("three containers got the ports %v", seen)
	}
}

// testNetworkHost: the container reaches this machine's loopback interface, and nothing is
// published.
func (s *suite) testNetworkHost(t *testing.T) {
	if s.ownKernel {
		spec := s.spec("sleep")
		spec.Network = engine.NetworkHost
		_, err := s.engine.Create(t.Context(), spec)
		wantError(t, err, engine.ErrInvalid, "network")
		return
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		if connection, err := listener.Accept(); err == nil {
			_, _ = io.WriteString(connection, "from the host")
			_ = connection.Close()
		}
	}()
	defer func() {
		_ = listener.Close()
		<-answered
	}()
	spec := s.spec("receive", listener.Addr().String())
	spec.Network = engine.NetworkHost
	if got := s.output(t, spec); got != "from the host" {
		t.Errorf("the container got %q", got)
	}
	spec = s.spec("sleep")
	spec.Network, spec.Publish = engine.NetworkHost, []int{8080}
	_, err = s.engine.Create(t.Context(), spec)
	wantError(t, err, engine.ErrInvalid, "publish")
}

func (s *suite) testNetworkNone(t *testing.T) {
	spec := s.spec("interfaces")
	spec.Network = engine.NetworkNone
	if got := s.output(t, spec); got != "lo\n" && !(s.ownKernel && got == "") {
		t.Errorf("without a network the container has the interfaces %q", got)
	}
}

func (s *suite) testMemoryLimit(t *testing.T) {
	spec := s.spec("eat", "512")
	spec.Resources.MemoryBytes = 64 << 20
	spec.Resources.NanoCPUs = 500_000_000
	c := s.waitStatus(t, s.start(t, spec), engine.StatusExited)
	if !c.OOMKilled || c.ExitCode != 137 {
		t.Errorf("out of memory %t, exit code %d; want true, 137", c.OOMKilled, c.ExitCode)
	}
}

// testNetlinkMemory: a container whose netlink sockets hold more than it may is ended as one
// without memory, also when it has joined the network of another one, which goes on; one whose
// sockets hold less goes on.
func (s *suite) testNetlinkMemory(t *testing.T) {
	if s.ownKernel {
		return // its sockets are its own kernel's
	}
	owner := s.spec("sleep")
	owner.Network, owner.Publish, owner.PublishIP = engine.NetworkOwn, []int{8080}, "127.0.0.1"
	modest := s.spec("hoard", "8")
	modest.Network, modest.Publish, modest.PublishIP = engine.NetworkOwn, []int{8080}, "127.0.0.1"
	ownerID, modestID := s.start(t, owner), s.start(t, modest)
	joined, alone := s.spec("hoard", "64"), s.spec("hoard", "64")
	joined.Network, joined.Join = engine.NetworkOwn, owner.Name
	alone.Network = engine.NetworkNone
	hoarders := map[string]string{}
	for name, spec := range map[string]engine.ContainerSpec{"joined": joined, "no network": alone} {
		spec.Resources.MemoryBytes = 32 << 20
		hoarders[name] = s.start(t, spec)
	}
	for name, id := range hoarders {
		if ended := s.waitStatus(t, id, engine.StatusExited); ended.ExitCode != 137 || !ended.OOMKilled {
			t.Errorf("%s: it ended with %d, for its memory: %t", name, ended.ExitCode, ended.OOMKilled)
		}
	}
	for name, id := range map[string]string{"the owner of the network": ownerID, "the modest": modestID} {
		if found := s.inspect(t, id); found.Status != engine.StatusRunning {
			t.Errorf("%s is %s", name, found.Status)
		}
	}
}

func (s *suite) testPIDsLimit(t *testing.T) {
	spec := s.spec("fork", "200")
	spec.Resources.PIDs = 50
	if s.ownKernel {
		if c := s.waitStatus(t, s.start(t, spec), engine.StatusExited); c.ExitCode == 0 {
			t.Error("200 processes under a limit of 50 ended with 0")
		}
	} else if got := s.output(t, spec); !strings.Contains(got, "refused") {
		t.Errorf("200 processes under a limit of 50: %s", got)
	}
	if got := s.output(t, s.spec("fork", "50")); !strings.Contains(got, "forked 50\n") {
		t.Errorf("50 processes without a limit: %s", got)
	}
}

func (s *suite) testSecurity(t *testing.T) {
	fields := func(security engine.Security) map[string]string {
		spec := s.spec("cat", "/proc/self/status")
		spec.Security = security
		found := map[string]string{}
		for line := range strings.Lines(s.output(t, spec)) {
			name, value, _ := strings.Cut(line, ":")
			found[name] = strings.TrimSpace(value)
		}
		return found
	}
	const netRaw, mknod = 1 << 13, 1 << 27
	plain := fields(engine.Security{})
	if s.ownKernel {
		narrow := fields(engine.Security{DropCapabilities: []string{"NET_RAW", "MKNOD"}})
		if before, after := capabilities(t, plain), capabilities(t, narrow); before&mknod == 0 || after&(netRaw|mknod) != 0 {
			t.Errorf("capabilities %x by default and %x without two", before, after)
		}
		return
	}
	if caps := capabilities(t, plain); caps&netRaw == 0 || caps&mknod == 0 || plain["NoNewPrivs"] != "0" || plain["Seccomp"] != "2" {
		t.Errorf("by default: capabilities %x, no_new_privs %s, seccomp %s", caps, plain["NoNewPrivs"], plain["Seccomp"])
	}
	narrow := fields(engine.Security{DropCapabilities: []string{"NET_RAW", "MKNOD"}, NoNewPrivileges: true, SeccompProfile: "unconfined"})
	if caps := capabilities(t, narrow); caps&(netRaw|mknod) != 0 || narrow["NoNewPrivs"] != "1" || narrow["Seccomp"] != "0" {
		t.Errorf("narrowed: capabilities %x, no_new_privs %s, seccomp %s", caps, narrow["NoNewPrivs"], narrow["Seccomp"])
	}
	own := engine.Security{SeccompProfile: `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdirat"],"action":"SCMP_ACT_ERRNO"}]}`}
	if profile := fields(own); profile["Seccomp"] != "2" {
		t.Errorf("with a profile of its own: seccomp %s", profile["Seccomp"])
	}
	for want, security := range map[string]engine.Security{"<nil>\n": {}, syscall.EPERM.Error() + "\n": own} {
		spec := s.spec("mkdir", "/made")
		spec.Security = security
		if got := s.output(t, spec); got != want {
			t.Errorf("mkdirat with the profile %q: %q, want %q", security.SeccompProfile, got, want)
		}
	}
}

func capabilities(t *testing.T, status map[string]string) uint64 {
	t.Helper()
	caps, err := strconv.ParseUint(status["CapBnd"], 16, 64)
	if err != nil {
		t.Fatalf("CapBnd %q: %v", status["CapBnd"], err)
	}
	return caps
}

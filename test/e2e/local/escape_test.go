package local_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/e2e/conformance/localengine"
)

const escapeProgram = "sandbox.internal/test/e2e/local/testdata/escape"

// TestEscape: with the service's defaults, root in a sandbox is refused everything that is known to
// lead out of one.
func TestEscape(t *testing.T) {
	t.Parallel()
	runtimes := []string{"crun", "runc"}
	if !slices.Contains(runtimes, *usual) {
		runtimes = append(runtimes, *usual)
	}
	for _, runtime := range runtimes {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			on := newMachines()
			s := conformance.Start(t, onLocal(on), conformance.Plan{
				Settings: fmt.Sprintf("[[runtime.classes]]\nname = \"tried\"\nhandler = %q\n", runtime),
			})
			neighbour := s.Running(t, s.Idle())
			before := hostState(t)
			attempts := escape(t, s, "tried", outsideOf(t, on.of(s.Instance), neighbour))
			for _, line := range attempts {
				if !strings.HasPrefix(line, "refused ") && (!localengine.OwnKernel(runtime) || ofHost.MatchString(line)) {
					t.Error(line)
				}
			}
			if len(attempts) < 200 {
				t.Errorf("%d attempts were made", len(attempts))
			}
			if after := hostState(t); after != before {
				t.Errorf("the host has changed: before\n%s\nafter\n%s", before, after)
			}
			s.Enter(t, neighbour).Want(t, "echo unharmed", "unharmed\n")
		})
	}
}

// ofHost matches the attempts that reach for what is outside of a kernel of the sandbox's own. All
// others end there: root may do in it what it likes.
var ofHost = regexp.MustCompile(`of the host|the host's file|connect to|/opt/sandbox`)

// TestEscapeIsNoticed: the same program in a sandbox that is confined less reports what is open, so
// it would report it elsewhere.
func TestEscapeIsNoticed(t *testing.T) {
	t.Parallel()
	on := newMachines()
	on.Local = "user_namespaces = \"off\"\n" // or the network is not the sandbox's to send anything from
	s := conformance.Start(t, onLocal(on), conformance.Plan{Settings: "[docker]\ndrop_capabilities = []\nseccomp_profile = \"unconfined\"\n"})
	neighbour := s.Running(t, s.Idle())
	target := outsideOf(t, on.of(s.Instance), neighbour)
	target.Addresses = nil
	attempts := escape(t, s, "", target)
	for _, name := range []string{"clone user", "unshare user", "a raw socket", "a packet socket", "add_key"} {
		if !slices.ContainsFunc(attempts, func(line string) bool { return strings.HasPrefix(line, "OPEN "+name+":") }) {
			t.Errorf("without the filter of system calls, the attempt %q is not reported", name)
		}
	}
}

// target is what escape tries to reach; see its package.
type target struct {
	Marker    string
	PID       int
	Abstract  string
	Addresses []string
}

// hostAddresses returns the host's IPv4 addresses, but for those of the bridges of other services
// and of the veth pairs of tests, also of other packages: when one of these goes, its address leads
// outside, where something may answer. The bridge of a Docker Engine stays.
func (m machine) hostAddresses(t *testing.T) []net.IP {
	t.Helper()
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	var found []net.IP
	for _, link := range links {
		_, err := os.Stat(filepath.Join("/sys/class/net", link.Name, "bridge"))
		if link.Name != m.Bridge && (err == nil && link.Name != "docker0" || localengine.TestLink.MatchString(link.Name)) {
			continue
		}
		addresses, err := link.Addrs()
		if err != nil {
			continue // it has gone
		}
		for _, address := range addresses {
			if own, ok := address.(*net.IPNet); ok && own.IP.To4() != nil {
				found = append(found, own.IP)
			}
		}
	}
	return found
}

// outsideOf makes what a sandbox must not reach: servers on the host, and a neighbour, whose daemon
// is one.
func outsideOf(t *testing.T, m machine, neighbour string) target {
	t.Helper()
	marker := filepath.Join(t.TempDir(), "marker")
	if err := os.WriteFile(marker, []byte("of the host"), 0o644); err != nil {
		t.Fatal(err)
	}
	out := target{Marker: marker, PID: os.Getpid(), Abstract: "sandbox-escape-" + filepath.Base(t.TempDir()) + t.Name()}
	abstract, err := net.Listen("unix", "@"+out.Abstract)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = abstract.Close() })
	server, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	port := server.Addr().(*net.TCPAddr).Port
	addresses := m.hostAddresses(t)
	for _, address := range addresses {
		out.Addresses = append(out.Addresses, fmt.Sprintf("%s:%d", address, port))
	}
	for _, r := range m.Records(t, neighbour) {
		out.Addresses = append(out.Addresses, fmt.Sprintf("%s:%d", r.Run.Network.Address, conformance.DaemonPort))
		for _, published := range r.Run.Network.Ports {
			for _, address := range addresses {
				out.Addresses = append(out.Addresses, fmt.Sprintf("%s:%d", address, published))
			}
		}
	}
	if len(out.Addresses) < 4 {
		t.Fatalf("there is hardly anything to reach: %v", out.Addresses)
	}
	return out
}

// escape runs the program in a sandbox of the class and returns its lines.
func escape(t *testing.T, s *conformance.Service, class string, target target) []string {
	t.Helper()
	program := conformance.Build(t, escapeProgram)
	directory := conformance.HostVolume(filepath.Dir(program), "/programs")
	yes := true
	directory.ReadOnly = &yes
	request := s.Idle()
	request.Volumes = []lifecycle.Volume{directory}
	if class != "" {
		request.RuntimeClass = &class
	}
	argument, err := json.Marshal(target)
	if err != nil {
		t.Fatal(err)
	}
	got := s.Enter(t, s.Running(t, request)).Run(t, fmt.Sprintf("id -u && exec /programs/%s '%s'", filepath.Base(program), argument))
	lines := strings.Split(strings.TrimSpace(got.Stdout), "\n")
	if got.Code != 0 || len(lines) < 2 || lines[0] != "0" || lines[len(lines)-1] != "end" {
		t.Fatalf("the program ended with %d: %s%s", got.Code, got.Stdout, got.Stderr)
	}
	return lines[1 : len(lines)-1]
}

// hostState is what a sandbox must not be able to change, as text.
func hostState(t *testing.T) string {
	t.Helper()
	var text strings.Builder
	for _, path := range []string{
		"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/sysrq", "/proc/sys/kernel/hostname",
		"/proc/sys/kernel/domainname", "/proc/sys/vm/panic_on_oom", "/proc/sys/fs/suid_dumpable", "/proc/modules", "/proc/swaps",
	} {
		content, err := os.ReadFile(path)
		if err != nil {
			content = []byte(err.Error())
		}
		fmt.Fprintf(&text, "%s: %x\n", path, sha256.Sum256(content))
	}
	agents, err := filepath.Glob("/sys/fs/cgroup/*/release_agent")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range agents {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		}
		fmt.Fprintf(&text, "%s: %q\n", path, content)
	}
	return text.String()
}

// TestFilesOfTheHostAreBounded: what a sandbox can make grow outside of its own root file system
// has a bound, or lies on the disk that is its own.
func TestFilesOfTheHostAreBounded(t *testing.T) {
	t.Parallel()
	on := newMachines()
	s := conformance.Start(t, onLocal(on), conformance.Plan{})
	id := s.Running(t, s.Idle())
	inside := s.Enter(t, id)
	const mebibytes = 40
	for _, name := range []string{"hosts", "hostname", "resolv.conf"} {
		inside.Want(t, fmt.Sprintf("dd if=/dev/zero of=/etc/%s bs=1M count=%d 2>/dev/null", name, mebibytes), "")
	}
	// The log of the entrypoint is reached by its standard output, whoever writes to it.
	got := inside.Run(t, fmt.Sprintf(`for p in /proc/[0-9]*; do
		[ "$(tr '\0' ' ' <$p/cmdline)" = "sleep 1000 " ] && dd if=/dev/zero of=$p/fd/1 bs=1M count=%d 2>/dev/null && echo written && break
	done`, mebibytes))
	if got.Stdout != "written\n" {
		t.Errorf("the entrypoint's standard output: %+v", got)
	}
	// Half of the sandbox's memory, as which the kernel counts it.
	if got := inside.Run(t, "dd if=/dev/zero of=/dev/shm/full bs=1M count=150; df -m /dev/shm | tail -1 | awk '{print $2}'; stat -c %s /dev/shm/full"); got.Stdout != "128\n134217728\n" {
		t.Errorf("/dev/shm: %+v", got)
	}
	for _, r := range on.of(s.Instance).Records(t, id) {
		directory := filepath.Join(on.of(s.Instance).Directory, "containers", r.ID)
		_ = filepath.WalkDir(directory, func(path string, entry os.DirEntry, err error) error {
			if err != nil {
				t.Error(err)
				return nil
			}
			if path == filepath.Join(directory, "disk") {
				return filepath.SkipDir
			}
			var stat unix.Stat_t
			if err := unix.Lstat(path, &stat); err != nil {
				t.Error(err)
			} else if stat.Blocks*512 > 25<<20 {
				t.Errorf("%s takes %d bytes", path, stat.Blocks*512)
			}
			return nil
		})
	}
}

package ports_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/execd/internal/ports"
)

// TestListening: what this process listens on is found, with the process, until it is closed.
func TestListening(t *testing.T) {
	t.Parallel()
	first, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	all, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	table := ports.New(ports.Options{})
	for listener, address := range map[net.Listener]string{first: "127.0.0.1", all: "0.0.0.0"} {
		number := listener.Addr().(*net.TCPAddr).Port
		found, _, err := table.Listening()
		if err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(found, func(p ports.Port) bool { return p.Number == number })
		if at < 0 {
			t.Fatalf("port %d is not in %+v", number, found)
		}
		port := found[at]
		name, err := os.ReadFile("/proc/self/comm")
		if err != nil {
			t.Fatal(err)
		}
		if port.PID != os.Getpid() || port.Program != strings.TrimSpace(string(name)) ||
			!slices.Contains(port.Addresses, netip.MustParseAddr(address)) {
			t.Errorf("port %d is %+v", number, port)
		}
		found, _, err = table.Listening(number)
		if err != nil || slices.ContainsFunc(found, func(p ports.Port) bool { return p.Number == number }) {
			t.Errorf("port %d, which is left out, is in %+v (%v)", number, found, err)
		}
	}
}

// fake writes a directory like that of proc(5) with one table of sockets.
func fake(t *testing.T, table string) *ports.Table {
	t.Helper()
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "net"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "net/tcp"), []byte(table), 0o600); err != nil {
		t.Fatal(err)
	}
	return ports.New(ports.Options{ProcRoot: root})
}

func line(address string, port int, state string) string {
	return fmt.Sprintf("%4d: %s:%04X 00000000:0000 %s 00000000:00000000 00:00000000 00000000     0"+
		"        0 12345 1 0000000000000000 100 0 0 10 0                     \n", port, address, port, state)
}

// TestOnlyListening: neither connections nor lines that the kernel does not write are ports.
func TestOnlyListening(t *testing.T) {
	t.Parallel()
	found, truncated, err := fake(t, "  sl  local_address rem_address   st\n"+
		line("0100007F", 8000, "0A")+line("0100007F", 8001, "01")+line("xx", 8002, "0A")+
		line("01", 8003, "0A")+line("0100007F", 0, "0A")+"\n0A\n"+line("00000000", 8000, "0A")).Listening()
	if err != nil || truncated || len(found) != 1 || found[0].Number != 8000 || found[0].PID != 0 ||
		fmt.Sprint(found[0].Addresses) != "[0.0.0.0 127.0.0.1]" {
		t.Errorf("found %+v, truncated %t (%v)", found, truncated, err)
	}
}

// TestBounds: the sandbox decides how many sockets there are.
func TestBounds(t *testing.T) {
	t.Parallel()
	var table strings.Builder
	for port := 1; port <= 1500; port++ {
		table.WriteString(line("0100007F", port, "0A"))
	}
	for address := range 100 {
		table.WriteString(line(fmt.Sprintf("%08X", address), 1, "0A"))
	}
	found, truncated, err := fake(t, table.String()).Listening()
	if err != nil || !truncated || len(found) != 1000 || len(found[0].Addresses) != 16 {
		t.Errorf("%d ports, truncated %t (%v)", len(found), truncated, err)
	}
	found, truncated, err = fake(t, strings.Repeat(line("0100007F", 8000, "01"), 10_000)+
		line("0100007F", 8000, "0A")).Listening()
	if err != nil || !truncated || len(found) != 0 {
		t.Errorf("%d ports after 1 MiB, truncated %t (%v)", len(found), truncated, err)
	}
}

func TestNoTable(t *testing.T) {
	t.Parallel()
	if _, _, err := ports.New(ports.Options{ProcRoot: t.TempDir()}).Listening(); err == nil {
		t.Error("without the kernel's table there is no error")
	}
}

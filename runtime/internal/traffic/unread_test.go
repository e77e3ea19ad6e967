package traffic_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandbox.internal/runtime/internal/traffic"
)

// TestUnread: the tables of the kernel, as proc(5) has them.
func TestUnread(t *testing.T) {
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	line := func(state, queues string) string {
		return "   0: 0100007F:1F90 00000000:0000 " + state + " " + queues + " 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0\n"
	}
	for name, tc := range map[string]struct {
		tcp, udp string
		want     bool
	}{
		"no socket":                    {want: false},
		"a listener":                   {tcp: line("0A", "00000080:00000000"), want: false},
		"a connection not accepted":    {tcp: line("0A", "00000080:00000001"), want: true},
		"a connection":                 {tcp: line("01", "00000005:00000000"), want: false},
		"data of a connection":         {tcp: line("01", "00000000:00000005"), want: true},
		"the end of a connection":      {tcp: line("08", "00000000:00000001"), want: false},
		"data and the end":             {tcp: line("08", "00000000:00000006"), want: true},
		"data after the program's end": {tcp: line("05", "00000000:00000006"), want: false},
		"the second of two":            {tcp: line("01", "0:0") + line("01", "0:A"), want: true},
		"a datagram":                   {udp: line("07", "00000000:00000300"), want: true},
		"a socket of datagrams":        {udp: line("07", "00000000:00000000"), want: false},
		"too many sockets":             {tcp: strings.Repeat(line("01", "00000000:00000000"), 20_000), want: true},
	} {
		proc := t.TempDir()
		if err := os.MkdirAll(filepath.Join(proc, "7", "net"), 0o700); err != nil {
			t.Fatal(err)
		}
		for table, content := range map[string]string{"tcp": tc.tcp, "udp": tc.udp} {
			if err := os.WriteFile(filepath.Join(proc, "7", "net", table), []byte(head+content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := traffic.Unread(proc, 7); err != nil || got != tc.want {
			t.Errorf("%s: %v, %v; want %v", name, got, err, tc.want)
		}
	}
	if _, err := traffic.Unread(t.TempDir(), 7); err == nil {
		t.Error("no error without a table")
	}
}

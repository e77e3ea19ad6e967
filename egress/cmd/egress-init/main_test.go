package main

import (
	"io"
	"maps"
	"net/netip"
	"strings"
	"testing"

	"sandbox.internal/egress/config"
)

// TestTheAddressIsTheDaemons: egress-init reads where to listen as the egress daemon does, and
// leaves it to the egress daemon to refuse what is wrong.
func TestTheAddressIsTheDaemons(t *testing.T) {
	none := map[string]string{"EGRESS_HOST": "", "EGRESS_PORT": ""}
	for name, test := range map[string]struct {
		flags string
		env   map[string]string
		wrong bool
	}{
		"defaults":              {},
		"flags":                 {flags: "--port=1 --host=127.0.0.1"},
		"variables":             {env: map[string]string{"EGRESS_HOST": "192.0.2.1", "EGRESS_PORT": "2"}},
		"a flag wins":           {flags: "-port 0 -host=", env: map[string]string{"EGRESS_HOST": "192.0.2.1", "EGRESS_PORT": "2"}},
		"version 4 in 6":        {flags: "--host ::ffff:127.0.0.3"},
		"a value like a flag":   {flags: "--access-token --port=9 --port=4"},
		"no address":            {flags: "--host=localhost", wrong: true},
		"no port":               {flags: "--port=http", wrong: true},
		"no port of the kernel": {env: map[string]string{"EGRESS_PORT": "65536"}, wrong: true},
	} {
		t.Run(name, func(t *testing.T) {
			env := maps.Clone(none)
			maps.Copy(env, test.env)
			for variable, value := range env {
				t.Setenv(variable, value)
			}
			flags := strings.Fields(test.flags)
			want, err := config.Parse(flags, func(variable string) string { return env[variable] }, io.Discard)
			if (err != nil) != test.wrong {
				t.Fatalf("the egress daemon says %v", err)
			}
			host, port, ok := address(append([]string{"/egress"}, flags...))
			if ok == test.wrong {
				t.Fatalf("the address is taken for right: %t", ok)
			}
			if test.wrong {
				return
			}
			wanted := netip.IPv4Unspecified()
			if want.Host != "" {
				wanted = netip.MustParseAddr(want.Host).Unmap()
			}
			if host != wanted || port != want.Port {
				t.Errorf("the address is %v, port %d; the egress daemon has %+v", host, port, want)
			}
		})
	}
	if _, _, ok := address(nil); ok {
		t.Error("without a program there is an address")
	}
}

package config_test

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"sandbox.internal/egress/config"
	"sandbox.internal/egress/policy"
)

func env(pairs map[string]string) func(string) string {
	return func(name string) string { return pairs[name] }
}

func TestParsePrecedence(t *testing.T) {
	defaults := config.Settings{
		Policy: policy.Policy{DefaultAction: policy.Allow, Egress: []policy.Rule{}}, Port: 18080, StateDir: "/run/egress", LogLevel: 6,
	}
	with := func(change func(*config.Settings)) config.Settings {
		s := defaults
		change(&s)
		return s
	}
	for name, test := range map[string]struct {
		args []string
		env  map[string]string
		want config.Settings
	}{
		"defaults": {nil, map[string]string{"EGRESS_POLICY": "", "EGRESS_PORT": ""}, defaults},
		"variables override defaults": {nil, map[string]string{"EGRESS_PORT": "1", "EGRESS_ACCESS_TOKEN": "x", "EGRESS_RESTARTS": "3"},
			with(func(s *config.Settings) { s.Port, s.AccessToken, s.Restarts = 1, "x", 3 })},
		"flags override variables": {[]string{"--port=2", "--access-token="}, map[string]string{"EGRESS_PORT": "1", "EGRESS_ACCESS_TOKEN": "x"},
			with(func(s *config.Settings) { s.Port = 2 })},
		"policy": {[]string{`--policy={"defaultAction":"deny","egress":[{"action":"allow","target":"A.test"}]}`}, nil,
			with(func(s *config.Settings) {
				s.Policy = policy.Policy{DefaultAction: policy.Deny, Egress: []policy.Rule{{Action: policy.Allow, Target: "a.test"}}}
			})},
		"neighbours": {nil, map[string]string{"EGRESS_REFUSE_NEIGHBOURS": "true"}, with(func(s *config.Settings) { s.RefuseNeighbours = true })},
		"upstream": {nil, map[string]string{"EGRESS_UPSTREAM": "192.0.2.1, 192.0.2.2:5353"},
			with(func(s *config.Settings) {
				s.Upstream = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:53"), netip.MustParseAddrPort("192.0.2.2:5353")}
			})},
	} {
		got, err := config.Parse(test.args, env(test.env), io.Discard)
		if err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, err, test.want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for want, args := range map[string][]string{
		"--policy: egress[0].target":     {`--policy={"egress":[{"action":"allow","target":"*"}]}`},
		"--policy: must be JSON":         {"--policy=deny"},
		"--port: must be a whole number": {"--port=70000"},
		"--host: must be an IP address":  {"--host=localhost"},
		"--upstream: must be name":       {"--upstream=dns.example"},
		"--upstream: must be IPv4":       {"--upstream=2001:db8::1"},
		"--refuse-neighbours: must be":   {"--refuse-neighbours=yes"},
		"--state-dir: must be an abs":    {"--state-dir=state"},
		"--log-level: must be a whole":   {"--log-level=8"},
		"--access-token: must be":        {"--access-token=hush hush"},
		"only flags":                     {"deny"},
		"--help":                         {"--prot=1"},
	} {
		_, err := config.Parse(args, env(nil), io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%v: got %v, want %q", args, err, want)
		}
	}
}

func TestHelp(t *testing.T) {
	var out bytes.Buffer
	if _, err := config.Parse([]string{"--help"}, env(nil), &out); !errors.Is(err, flag.ErrHelp) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"--policy", "EGRESS_POLICY", "--upstream", "18080", "/run/egress"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("help does not show %q:\n%s", want, out.String())
		}
	}
}

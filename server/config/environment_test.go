package config_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/server/config"
)

func TestEnvironment(t *testing.T) {
	const (
		hostRule = "DOCKER_HOST: must be unix:///PATH or tcp://HOST:PORT"
		ttlRange = "PENDING_FAILURE_TTL: must be between 0 and 315360000 seconds (got -1)"
	)
	tests := map[string]struct{ variable, value, want string }{
		"socket":          {"DOCKER_HOST", "unix:///run/user/1000/docker.sock", ""},
		"tcp":             {"DOCKER_HOST", "tcp://engine.example:2376", ""},
		"relative socket": {"DOCKER_HOST", "unix://docker.sock", hostRule},
		"no path":         {"DOCKER_HOST", "unix://", hostRule},
		"bare path":       {"DOCKER_HOST", "/var/run/docker.sock", hostRule},
		"no port":         {"DOCKER_HOST", "tcp://engine", hostRule},
		"port 0":          {"DOCKER_HOST", "tcp://engine:0", hostRule},
		"named pipe":      {"DOCKER_HOST", "npipe:////./pipe/docker_engine", hostRule},
		"ssh":             {"DOCKER_HOST", "ssh://engine", hostRule},
		"password":        {"DOCKER_HOST", "tcp://a:b@engine:2375", hostRule},
		"not a URL":       {"DOCKER_HOST", "tcp://engine:port", hostRule},
		"ttl":             {"PENDING_FAILURE_TTL", "60", ""},
		"negative ttl":    {"PENDING_FAILURE_TTL", "-1", ttlRange},
		"ttl with a unit": {"PENDING_FAILURE_TTL", "60s",
			`PENDING_FAILURE_TTL: must be a whole number of seconds (got "60s")`},
		"ttl as a fraction": {"PENDING_FAILURE_TTL", "1.5",
			`PENDING_FAILURE_TTL: must be a whole number of seconds (got "1.5")`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := config.Load(write(t, minimal),
				environment(map[string]string{"HOME": "/h", tt.variable: tt.value}))
			got := ""
			if err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// TestKeysOfTheDocument: what the document has in [docker] is the same setting as in [sandbox], and
// keeps its name in messages.
func TestKeysOfTheDocument(t *testing.T) {
	const settings = "pids_limit = 7\ndrop_capabilities = [\"ALL\"]\nnetwork_mode = \"host\"\n"
	ours, theirs := load(t, minimal+"[sandbox]\n"+settings, home), load(t, minimal+"[docker]\n"+settings, home)
	for config, section := range map[*config.Config]string{&ours: "sandbox", &theirs: "docker"} {
		if got := config.Key("sandbox.pids_limit"); got != section+".pids_limit" {
			t.Errorf("of [%s] the key is %s", section, got)
		}
		if got := config.Key("sandbox.drop_capabilities[0]"); got != section+".drop_capabilities[0]" {
			t.Errorf("of [%s] the key is %s", section, got)
		}
		if !slices.ContainsFunc(config.Warnings(), func(w string) bool { return strings.HasPrefix(w, section+".network_mode is host") }) {
			t.Errorf("warnings %q", config.Warnings())
		}
	}
	if got := ours.Key("sandbox.host_ip"); got != "sandbox.host_ip" {
		t.Errorf("a key that no file has is %s", got)
	}
	if theirs.FromDocker = nil; !reflect.DeepEqual(ours, theirs) {
		t.Errorf("got  %+v\nwant %+v", theirs, ours)
	}
}

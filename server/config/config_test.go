package config_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/server/config"
)

// minimal is the smallest valid file.
const minimal = `[runtime]
type = "docker"
execd_image = "sandbox/execd:dev"
`

// environment looks variables up in a map, as os.Getenv would.
func environment(vars map[string]string) func(string) string {
	return func(name string) string { return vars[name] }
}

// home is an environment with nothing but a home directory.
var home = environment(map[string]string{"HOME": "/home/ada"})

// write puts content into a fresh directory as sandbox.toml and makes that the
// working directory, so that errors show the bare file name.
func write(t *testing.T, content string) string {
	t.Helper()
	t.Chdir(t.TempDir())
	if err := os.WriteFile("sandbox.toml", []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return "sandbox.toml"
}

// load reads content, which must be valid.
func load(t *testing.T, content string, env func(string) string) config.Config {
	t.Helper()
	c, err := config.Load(write(t, content), env)
	if err != nil {
		t.Fatalf("load: %v", err)
	}
	return c
}

func TestDefaultDataDir(t *testing.T) {
	tests := map[string]struct {
		euid int
		env  map[string]string
		want string
	}{
		"root": {0,
			map[string]string{"HOME": "/root", "XDG_STATE_HOME": "/state"},
			"/var/lib/sandbox-server"},
		"user with a state home": {1000,
			map[string]string{"HOME": "/home/ada", "XDG_STATE_HOME": "/state"},
			"/state/sandbox-server"},
		"relative state home": {1000,
			map[string]string{"HOME": "/home/ada", "XDG_STATE_HOME": "state"},
			"/home/ada/.local/state/sandbox-server"},
		"user with only a home": {1000, map[string]string{"HOME": "/home/ada"},
			"/home/ada/.local/state/sandbox-server"},
		"user without either one": {1000, nil, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := config.DefaultDataDir(tt.euid, environment(tt.env)); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestDefaultLacksOnlyTheRequiredKeys(t *testing.T) {
	c := config.Default(home)
	want := "runtime.type: is required (local, docker or kubernetes)\nruntime.execd_image: is required"
	if err := c.Validate(); err == nil || err.Error() != want {
		t.Fatalf("got %v, want %s", err, want)
	}
	c.Runtime = config.Runtime{Type: config.RuntimeDocker, ExecdImage: "sandbox/execd:dev"}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
}

func TestDefaultsShareNothing(t *testing.T) {
	config.Default(home).Sandbox.DropCapabilities[0] = "changed"
	if got := config.Default(home).Sandbox.DropCapabilities[0]; got != "AUDIT_WRITE" {
		t.Errorf("a change to one default shows in the next: %q", got)
	}
}

func TestValidateCoversTheEnvironment(t *testing.T) {
	c := config.Default(home)
	c.Runtime = config.Runtime{Type: config.RuntimeDocker, ExecdImage: "x"}
	c.Environment.DockerHost = "ssh://host"
	want := "DOCKER_HOST: must be unix:///PATH or tcp://HOST:PORT"
	if err := c.Validate(); err == nil || err.Error() != want {
		t.Fatalf("got %v, want %s", err, want)
	}
}

func TestPath(t *testing.T) {
	const variable = "SANDBOX_CONFIG_PATH"
	tests := map[string]struct {
		flag string
		env  map[string]string
		want string
	}{
		"flag wins": {"here.toml",
			map[string]string{variable: "/etc/s.toml", "HOME": "/home/ada"}, "here.toml"},
		"variable over home": {"", map[string]string{variable: "/etc/s.toml", "HOME": "/home/ada"},
			"/etc/s.toml"},
		"variable with ~": {"", map[string]string{variable: "~/s.toml", "HOME": "/home/ada"},
			"/home/ada/s.toml"},
		"home": {"", map[string]string{"HOME": "/home/ada"},
			filepath.Join("/home/ada", ".sandbox.toml")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := config.Path(tt.flag, environment(tt.env))
			if err != nil || got != tt.want {
				t.Errorf("got %q, %v; want %q", got, err, tt.want)
			}
		})
	}
	if got, err := config.Path("", environment(nil)); err == nil {
		t.Errorf("without any source: got %q, want an error", got)
	}
}

func TestWarnings(t *testing.T) {
	const long = `api_key = "0123456789abcdef0123456789abcdef"`
	network := func(lines string) string { return long + "\n" + lines }
	tests := map[string]struct {
		server string
		want   []string
	}{
		"no key, loopback": {`host = "127.0.0.1"`,
			[]string{"no API key is configured (server.api_key, server.keys): every user and program of this machine controls the service"}},
		"no key, every address": {"", nil}, // Exposed has that
		"row lifecycle/authentication/rule 4: a short key": {`api_key = "hunter2"`,
			[]string{"server.api_key is shorter than the advised 32 characters"}},
		"row lifecycle/authentication/rule 4: a long key": {long, nil},
		"host network": {network(
			"[docker]\nnetwork_mode = \"host\""),
			[]string{"docker.network_mode is host: a sandbox reaches everything that listens on this host, on 127.0.0.1 too, and there is one sandbox at a time"}},
		"unenforced": {network(
			"[docker]\nallow_unenforced_limits = true"),
			[]string{"docker.allow_unenforced_limits is true: the service starts even when limits of sandboxes have no effect"}},
		"gateway": {network(
			"[ingress.gateway]\naddress = \"gate.example:80\"\nroute.mode = \"uri\""),
			[]string{"the section [ingress.gateway] has no effect: ingress.mode is direct"}},
		"wildcard": {network(
			"[ingress.gateway]\naddress = \"*.gate.example\"\nroute.mode = \"wildcard\""),
			[]string{"the section [ingress.gateway] has no effect: ingress.mode is direct"}},
		"cluster": {network(
			"[kubernetes]\nkubeconfig_path = \"/k\"\nnamespace = \"n\""),
			[]string{"the section [kubernetes] has no effect: runtime.type is docker"}},
		"only digests": {`keys = [{name = "ci", role = "user", sha256 = "` + digestA + `"}]`, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := load(t, minimal+"[server]\n"+tt.server, home).Warnings()
			if len(got) != len(tt.want) || len(got) > 0 && got[0] != tt.want[0] {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// TestWarningsOfACluster: what is about an engine says that it has no effect.
func TestWarningsOfACluster(t *testing.T) {
	got := load(t, "[server]\napi_key = \"0123456789abcdef0123456789abcdef\"\n[runtime]\ntype = \"kubernetes\"\nexecd_image = \"x\"\n"+
		"[docker]\npids_limit = 7\napi_timeout = 7\nallow_unenforced_limits = true", home).Warnings()
	for _, key := range []string{"pids_limit", "api_timeout", "allow_unenforced_limits"} {
		if !slices.ContainsFunc(got, func(w string) bool { return strings.HasPrefix(w, "docker."+key+" has no effect") }) {
			t.Errorf("no warning of docker.%s: %q", key, got)
		}
	}
}

func TestExposed(t *testing.T) {
	for name, test := range map[string]struct {
		settings string
		words    []string // none when it is not exposed
	}{
		"open": {"", []string{"0.0.0.0", "server.host", "server.api_key", "as root"}},
		"a list": {"[storage]\nallowed_host_paths = [\"/srv\"]",
			[]string{"server.api_key"}},
		"loopback": {"[server]\nhost = \"::1\"", nil},
		"a digest alone": {"[[server.keys]]\nname = \"ci\"\nrole = \"user\"\nsha256 = \"" +
			digestA + "\"", nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := load(t, minimal+test.settings, home).Exposed()
			if (got != "") != (test.words != nil) ||
				strings.Contains(got, "as root") != slices.Contains(test.words, "as root") {
				t.Errorf("got %q", got)
			}
			for _, word := range test.words {
				if !strings.Contains(got, word) {
					t.Errorf("%q is not in %q", word, got)
				}
			}
		})
	}
}

// TestOwnPaths: everything that the service keeps or reads in files.
func TestOwnPaths(t *testing.T) {
	c := valid()
	c.File, c.Server.DataDir, c.Server.APIKeyFile = "/a", "/b", "/c"
	c.Server.SigningKey, c.Server.AuditLog = "/d", "/e/"
	c.Sandbox.SeccompProfile, c.Kubernetes.KubeconfigPath = config.SeccompUnconfined, ""
	got, want := c.OwnPaths(), []string{"/a", "/b", "/d", "/c", "/e"}
	if !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestHostVolumesAndAList(t *testing.T) {
	c := valid()
	c.Storage = config.Storage{AllowedHostPaths: []string{"/srv"}}
	if err := c.Validate(); err == nil ||
		!strings.Contains(err.Error(),
			"storage.allowed_host_paths: must be empty while storage.host_volumes is false") {
		t.Errorf("got %v", err)
	}
}

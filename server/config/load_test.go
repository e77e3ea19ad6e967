package config_test

import (
	"errors"
	"io/fs"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"sandbox.internal/server/config"
)

const (
	digestA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	// digestOfSecret is the SHA-256 of "secret".
	digestOfSecret = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
)

func TestLoadOverridesDefaultsAndNormalises(t *testing.T) {
	got := load(t, `
[server]
host = "::1"
port = 0
log_level = "warning"
api_key = "0123456789abcdef0123456789abcdef"
data_dir = "~/records"
instance = "blue-2"
terminated_retention = 60
max_connections = 500
max_sandboxes = 40
max_snapshots = 50
max_snapshots_mib = 60
default_image = "registry.example/base:1"
default_timeout = 900
compatibility = ["opensandbox"]
mcp = false
console = false
[[server.keys]]
name = "ci"
sha256 = "`+strings.ToUpper(digestA)+`"
role = "viewer"
max_sandboxes = 4
[runtime]
type = "docker"
execd_image = "registry.example/execd@sha256:abc"
[docker]
drop_capabilities = ["cap_net_raw", "ALL"]
no_new_privileges = false
apparmor_profile = "docker-default"
pids_limit = 0
seccomp_profile = "unconfined"
api_timeout = 5
host_ip = "host.example"
[storage]
allowed_host_paths = ["/data/", "/"]
`, environment(map[string]string{"HOME": "/home/ada", "DOCKER_HOST": "tcp://[::1]:2375", "PENDING_FAILURE_TTL": "0"}))

	want := config.Default(home)
	want.Server = config.Server{
		Host: "::1", LogLevel: config.LogLevelWarning, APIKey: "0123456789abcdef0123456789abcdef",
		DataDir: "/home/ada/records", Instance: "blue-2", TerminatedRetention: 60,
		MaxConnections: 500, MaxSandboxes: 40, MaxSnapshots: 50, MaxSnapshotsMiB: 60, DefaultImage: "registry.example/base:1", DefaultTimeout: 900, Compatibility: []string{"opensandbox"},
		Keys: []config.Key{{Name: "ci", SHA256: digestA, Role: config.RoleViewer, MaxSandboxes: 4}},
	}
	want.Runtime = config.Runtime{Type: config.RuntimeDocker,
		ExecdImage: "registry.example/execd@sha256:abc", InternalRegistries: []string{}, Classes: []config.RuntimeClass{}}
	want.Docker.APITimeout = 5
	want.Sandbox = config.Sandbox{
		NetworkMode: config.NetworkBridge, DropCapabilities: []string{"NET_RAW", "ALL"},
		AppArmorProfile: "docker-default",
		SeccompProfile:  config.SeccompUnconfined, HostIP: "host.example",
	}
	want.FromDocker = []string{"apparmor_profile", "drop_capabilities", "host_ip", "no_new_privileges", "pids_limit", "seccomp_profile"}
	want.Storage.AllowedHostPaths = []string{"/data", "/"}
	want.Environment = config.Environment{DockerHost: "tcp://[::1]:2375"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if d := got.Docker.APITimeout.Duration(); d != 5*time.Second {
		t.Errorf("api_timeout is %v", d)
	}
}

func TestLoadRefusesOneKeyUnderTwoNames(t *testing.T) {
	_, err := config.Load(write(t, minimal+`[server]
api_key = "secret"
[[server.keys]]
name = "a"
role = "viewer"
sha256 = "`+digestOfSecret+`"
`), home)
	want := "sandbox.toml:9: server.keys[0].sha256: must be unique (it is the same key as server.api_key)"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// Else its key would own the administrator's sandboxes and use up its rate.
func TestLoadRefusesTheNameOfTheAdministratorsKey(t *testing.T) {
	_, err := config.Load(write(t, minimal+`[server]
api_key = "secret"
[[server.keys]]
name = "server.api_key"
role = "user"
sha256 = "`+strings.Repeat("0", 64)+`"
`), home)
	want := `sandbox.toml:7: server.keys[0].name: must be unique ("server.api_key" is used by an earlier key)`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// Else the audit log could not distinguish its requests from those without a key.
func TestLoadRefusesReservedNames(t *testing.T) {
	for _, name := range config.ReservedNames() {
		_, err := config.Load(write(t, minimal+`[server]
[[server.keys]]
name = "`+name+`"
role = "user"
sha256 = "`+strings.Repeat("0", 64)+`"
`), home)
		want := `sandbox.toml:6: server.keys[0].name: must not be "` + name +
			`": the log and the audit log name requests to ports so that no key lets in`
		if err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

func TestLoadRefusesWhatIsNotTOML(t *testing.T) {
	tests := map[string]struct{ content, want string }{
		"key twice": {"[server]\nport = 1\nport = 2\n",
			"sandbox.toml:3: server.port: is set twice (first in line 2)"},
		"section twice": {"[server]\nport = 1\n[server]\n",
			"sandbox.toml:3: server: is set twice (first in line 1)"},
		"twice in second entry": {"[[server.keys]]\nname = \"a\"\n[[server.keys]]\nname = \"b\"\nname = \"c\"\n",
			"sandbox.toml:5: server.keys[1].name: is set twice (first in line 4)"},
		"null": {"[docker]\npids_limit = null\n",
			"sandbox.toml:2: docker.pids_limit: TOML has no null: leave the key out, or write 0 where that means no limit"},
		"open string": {"[server]\nhost = \"a\nport = 1\n",
			"sandbox.toml:2: server.host: basic strings cannot have new lines"},
		"no key at all": {"\n= 3\n",
			"sandbox.toml:2: invalid character at start of key: U+003D '='"},
		"too large": {"[server]\nport = 99999999999999999999\n",
			"sandbox.toml:2: server.port: decimal number is too large to fit in a 64-bit signed integer"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := config.Load(write(t, tt.content), home)
			if err == nil || err.Error() != tt.want {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
}

func TestLoadMissingFile(t *testing.T) {
	t.Chdir(t.TempDir())
	_, err := config.Load("absent.toml", home)
	want := "absent.toml: file does not exist; write one with: sandbox-server --config absent.toml config init"
	if !errors.Is(err, fs.ErrNotExist) || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestLoadUnreadableFile(t *testing.T) {
	dir := t.TempDir()
	if _, err := config.Load(dir, home); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("got %v, want an error that names %s", err, dir)
	}
}

func TestSeccompProfile(t *testing.T) {
	tests := map[string]struct{ profile, want string }{
		"object": {`{"defaultAction": "SCMP_ACT_ALLOW"}`, ""},
		"array":  {`[]`, "must hold a JSON object"},
		"broken": {`{`, "must hold a JSON object"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir() + "/profile.json"
			if err := os.WriteFile(path, []byte(tt.profile), 0o600); err != nil {
				t.Fatal(err)
			}
			c, err := config.Load(write(t, minimal+"[docker]\nseccomp_profile = \""+path+"\"\n"),
				home)
			switch {
			case tt.want == "" && (err != nil || c.Sandbox.SeccompProfile != path):
				t.Errorf("got %q, %v", c.Sandbox.SeccompProfile, err)
			case tt.want != "" &&
				(err == nil || !strings.HasPrefix(err.Error(),
					"sandbox.toml:5: docker.seccomp_profile: "+tt.want)):
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
}

// TestDockerHostOfOthers: the variable is for every program of the machine, so without Docker it is
// nothing to the service.
func TestDockerHostOfOthers(t *testing.T) {
	env := environment(map[string]string{"HOME": "/h", "DOCKER_HOST": "ssh://build@host"})
	for name, runtime := range map[string]string{"local": `type = "local"`, "kubernetes": `type = "kubernetes"`} {
		_, err := config.Load(write(t, "[runtime]\nexecd_image = \"x\"\n"+runtime), env)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestGatewayAddresses: with or without a port, and IPv6 with or without brackets.
func TestGatewayAddresses(t *testing.T) {
	for address, want := range map[string]bool{
		"2001:db8::1": true, "[2001:db8::1]": true, "[2001:db8::1]:8080": true, "192.0.2.1:8080": true,
		"[192.0.2.1]": false, "[2001:db8::1": false, "[]": false, "[gate.example]": false,
	} {
		_, err := config.Load(write(t, "[runtime]\ntype = \"kubernetes\"\nexecd_image = \"x\"\n[ingress]\nmode = \"gateway\"\n[ingress.gateway]\naddress = \""+address+"\"\nroute.mode = \"uri\"\n"),
			environment(map[string]string{"HOME": "/h"}))
		if (err == nil) != want {
			t.Errorf("%s: got %v", address, err)
		}
	}
}

package config_test

import (
	"errors"
	"io/fs"
	"os"
	"reflect"
	"slices"
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

func TestLoadReportsEveryProblemInTheOrderOfTheFile(t *testing.T) {
	file := write(t, `[server]
prot = 1
port = 65536
log_level = 3
[docker]
pids_limit = -3
drop_capabilities = [
  "NET_RAW",
  "NET_ADMIM",
  7,
]
[[server.keys]]
name = "a"
sha256 = "`+digestA+`"
role = "root"
[[server.keys]]
name = "a"
role = "user"
[sever]
port = 1
[storage]
allowed_host_paths = "/"
`)
	_, err := config.Load(file,
		environment(map[string]string{"HOME": "/h", "PENDING_FAILURE_TTL": "1h"}))
	want := `sandbox.toml:2: server.prot: unknown key; did you mean server.port?
sandbox.toml:3: server.port: must be between 1 and 65535, or 0 for any free port (got 65536)
sandbox.toml:4: server.log_level: must be a string (got an integer)
sandbox.toml:6: docker.pids_limit: must be 0 or more, where 0 is no limit (got -3)
sandbox.toml:9: docker.drop_capabilities[1]: must be the name of a Linux capability, or ALL (got "NET_ADMIM")
sandbox.toml:10: docker.drop_capabilities[2]: must be a string (got an integer)
sandbox.toml:15: server.keys[0].role: must be admin, user or viewer (got "root")
sandbox.toml:16: server.keys[1].sha256: is required
sandbox.toml:17: server.keys[1].name: must be unique ("a" is used by an earlier key)
sandbox.toml:19: sever: unknown section; did you mean server?
sandbox.toml:22: storage.allowed_host_paths: must be an array (got a string)
sandbox.toml: runtime.execd_image: is required
sandbox.toml: runtime.type: is required (local, docker or kubernetes)
PENDING_FAILURE_TTL: must be a whole number of seconds (got "1h")`
	if err == nil || err.Error() != want {
		t.Fatalf("got\n%v\nwant\n%s", err, want)
	}
	var p *config.Problem
	if !errors.As(err, &p) || p.File != file || p.Line != 2 || p.Key != "server.prot" {
		t.Errorf("first problem as a value: %+v", p)
	}
}

func TestLoadRefuses(t *testing.T) {
	const place = "sandbox.toml:4: "
	tests := map[string]struct{ add, want string }{
		"host with port": {`server.host = "0.0.0.0:80"`,
			`server.host: must be an IP address or a host name (got "0.0.0.0:80")`},
		"empty host": {`server.host = ""`,
			`server.host: must be an IP address or a host name (got "")`},
		"host of too few bytes": {`server.host = "10.0.0"`,
			`server.host: must be an IP address or a host name (got "10.0.0")`},
		"negative port": {`server.port = -1`,
			`server.port: must be between 1 and 65535, or 0 for any free port (got -1)`},
		"port as text": {`server.port = "8080"`,
			`server.port: must be an integer (got a string)`},
		"fraction": {`server.port = 80.5`,
			`server.port: must be an integer (got a decimal number)`},
		"date": {`server.port = 2026-01-01`,
			`server.port: must be an integer (got a date or time)`},
		"log level": {`server.log_level = "trace"`,
			`server.log_level: must be DEBUG, INFO, WARNING or ERROR (got "trace")`},
		"api key with a newline": {`server.api_key = "a\nb"`,
			`server.api_key: must be visible ASCII characters, because clients send it in a header`},
		"api key as a number": {`server.api_key = 12345`,
			`server.api_key: must be a string (got an integer)`},
		"relative data dir": {`server.data_dir = "records"`,
			`server.data_dir: must be an absolute path, or begin with ~/ while HOME is set (got "records")`},
		"empty data dir": {`server.data_dir = ""`,
			`server.data_dir: is required (it has a default only for root, or with XDG_STATE_HOME or HOME set)`},
		"home of someone else": {`server.data_dir = "~ada/records"`,
			`server.data_dir: must be an absolute path, or begin with ~/ while HOME is set (got "~ada/records")`},
		"capability": {`docker.drop_capabilities = ["cap_net"]`,
			`docker.drop_capabilities[0]: must be the name of a Linux capability, or ALL (got "cap_net")`},
		"instance": {`server.instance = "Blue_1"`,
			`server.instance: must be 1 to 63 lower-case letters, digits and inner hyphens (got "Blue_1")`},
		"no connections": {`server.max_connections = 0`,
			`server.max_connections: must be between 1 and 1000000 (got 0)`},
		"short default timeout": {`server.default_timeout = 59`,
			`server.default_timeout: must be from 60 to 86400 seconds (got 59)`},
		"long default timeout": {`server.default_timeout = 86401`,
			`server.default_timeout: must be from 60 to 86400 seconds (got 86401)`},
		"long default image": {`server.default_image = "` + strings.Repeat("a", 1025) + `"`,
			`server.default_image: must be a reference of at most 1024 bytes (got 1025)`},
		"negative quota": {`server.max_sandboxes = -1`,
			`server.max_sandboxes: must be between 0 (no limit) and 1000000 (got -1)`},
		"negative number of snapshots": {`server.max_snapshots = -1`,
			`server.max_snapshots: must be between 0 (no limit) and 1000000 (got -1)`},
		"too many bytes of snapshots": {`server.max_snapshots_mib = 1000000001`,
			`server.max_snapshots_mib: must be between 0 (no limit) and 1000000000 (got 1000000001)`},
		"quota of a key": {`server.keys = [{sha256 = "` + digestA + `", name = "a", role = "user", max_sandboxes = 1000001}]`,
			`server.keys[0].max_sandboxes: must be between 0 (no limit) and 1000000 (got 1000001)`},
		"negative retention": {`server.terminated_retention = -1`,
			`server.terminated_retention: must be between 0 and 315360000 seconds (got -1)`},
		"retention overflow": {`server.terminated_retention = 9223372036854775807`,
			`server.terminated_retention: must be between 0 and 315360000 seconds (got 9223372036854775807)`},
		"nameless key": {`server.keys = [{sha256 = "` + digestA + `", role = "user"}]`,
			`server.keys[0].name: is required`},
		"roleless key": {`server.keys = [{sha256 = "` + digestA + `", name = "a"}]`,
			`server.keys[0].role: is required (admin, user or viewer)`},
		"key instead of digest": {`server.keys = [{sha256 = "my-secret-key", name = "a", role = "user"}]`, `server.keys[0].sha256: must be the SHA-256 digest of the key in 64 hexadecimal digits`},
		"unknown key of a key": {`server.keys = [{sha256 = "` + digestA +
			`", name = "a", role = "user", rol = "x"}]`,
			`server.keys[0].rol: unknown key; did you mean server.keys.role?`},
		"negative rate": {`server.rate_limit = {requests_per_second = -1}`,
			`server.rate_limit.requests_per_second: must be between 0 (no limit) and 1000000 (got -1)`},
		"huge rate": {`server.rate_limit = {failed_attempts_per_minute = 1000001}`,
			`server.rate_limit.failed_attempts_per_minute: must be between 0 (no limit) and 1000000 (got 1000001)`},
		"burst of no rate": {`server.rate_limit = {burst = 5}`,
			`server.rate_limit.burst: needs requests_per_second in the same section: without it there is no limit`},
		"rate as a number": {`server.rate_limit = 5`,
			`server.rate_limit: must be a section (got an integer)`},
		"negative burst of a key": {`server.keys = [{sha256 = "` + digestA +
			`", name = "a", role = "user", rate_limit = {requests_per_second = 1, burst = -1}}]`,
			`server.keys[0].rate_limit.burst: must be between 0 (as many as requests_per_second) and 1000000 (got -1)`},
		"unknown limit of a key": {`server.keys = [{sha256 = "` + digestA +
			`", name = "a", role = "user", rate_limit = {bursts = 1}}]`,
			`server.keys[0].rate_limit.bursts: unknown key; did you mean server.keys.rate_limit.burst?`},
		"keys is no array": {`server.keys = {name = "a"}`,
			`server.keys: must be an array (got a section)`},
		"host network elsewhere": {`docker.network_mode = "host"`,
			`docker.network_mode: must be bridge when DOCKER_HOST names another machine, whose loopback interface the service cannot reach (got "host")`},
		"network mode": {`docker.network_mode = "none"`,
			`docker.network_mode: must be bridge or host (got "none")`},
		"privileges as text": {`docker.no_new_privileges = "yes"`,
			`docker.no_new_privileges: must be true or false (got a string)`},
		"apparmor profile": {`docker.apparmor_profile = "a b"`,
			`docker.apparmor_profile: must be a profile's name without spaces (got "a b")`},
		"relative seccomp": {`docker.seccomp_profile = "s.json"`,
			`docker.seccomp_profile: must be empty, unconfined or the absolute path of a profile (got "s.json")`},
		"absent seccomp": {`docker.seccomp_profile = "/nonexistent/s.json"`,
			`docker.seccomp_profile: must be a file that the server can read: open /nonexistent/s.json: no such file or directory`},
		"api timeout": {`docker.api_timeout = 0`,
			`docker.api_timeout: must be between 1 and 315360000 seconds (got 0)`},
		"host ip": {`docker.host_ip = "192.0.2.1:80"`,
			`docker.host_ip: must be an IP address or a host name, without a port (got "192.0.2.1:80")`},
		"egress upstream": {`egress.upstream = ["192.0.2.1", "::1"]`,
			`egress.upstream[1]: must be an IPv4 address with an optional port, because sandboxes with a sidecar have no IPv6 (got "::1")`},
		"egress upstream, name": {`egress.upstream = ["dns.example"]`,
			`egress.upstream[0]: must be an IPv4 address with an optional port, because sandboxes with a sidecar have no IPv6 (got "dns.example")`},
		"gateway with docker": {`ingress.mode = "gateway"`,
			`ingress.mode: must be direct, because the docker runtime requires it (got "gateway")`},
		"ingress mode": {`ingress.mode = "x"`,
			`ingress.mode: must be direct or gateway (got "x")`},
		"row lifecycle/configuration/ingress.gateway.address: no domain": {`ingress.gateway.address = "*."`, `ingress.gateway.address: must be a wildcard domain such as *.example.com, or a host name or an IP address with an optional port (got "*.")`},
		"gateway with a path": {`ingress.gateway.address = "gate.example/x"`,
			`ingress.gateway.address: must be a wildcard domain such as *.example.com, or a host name or an IP address with an optional port (got "gate.example/x")`},
		"gateway port": {`ingress.gateway.address = "192.0.2.1:65536"`,
			`ingress.gateway.address: must be a wildcard domain such as *.example.com, or a host name or an IP address with an optional port (got "192.0.2.1:65536")`},
		"wildcard and uri": {`ingress.gateway = {address = "*.example.com", route.mode = "uri"}`,
			`ingress.gateway.address: must be a wildcard domain when ingress.gateway.route.mode is wildcard, and only then (got "*.example.com")`},
		"IP and wildcard": {`ingress.gateway = {address = "192.0.2.1", route.mode = "wildcard"}`,
			`ingress.gateway.address: must be a wildcard domain when ingress.gateway.route.mode is wildcard, and only then (got "192.0.2.1")`},
		"row lifecycle/configuration/ingress.gateway.route.mode: unknown": {`ingress.gateway.route.mode = "x"`, `ingress.gateway.route.mode: must be wildcard, uri or header (got "x")`},
		"relative mount": {`storage.allowed_host_paths = ["data"]`,
			`storage.allowed_host_paths[0]: must be an absolute path without ".", ".." and empty parts (got "data")`},
		"mount that goes up": {`storage.allowed_host_paths = ["/data/../etc"]`,
			`storage.allowed_host_paths[0]: must be an absolute path without ".", ".." and empty parts (got "/data/../etc")`},
		"egress image, spaces": {`egress.image = "a b"`,
			`egress.image: must be an image reference without spaces (got "a b")`},
		"pids limit": {`sandbox.pids_limit = -1`,
			`sandbox.pids_limit: must be 0 or more, where 0 is no limit (got -1)`},
		"a setting in both sections": {"docker.pids_limit = 1\nsandbox.pids_limit = 1",
			`docker.pids_limit: is set twice: sandbox.pids_limit is the same setting`},
		"no section": {"sandbox = 1", `sandbox: must be a section (got an integer)`},
		"unenforced limits": {`docker.allow_unenforced_limits = 1`,
			`docker.allow_unenforced_limits: must be true or false (got an integer)`},
		"row lifecycle/configuration/kubernetes.namespace": {`kubernetes.namespace = "My_Space"`,
			`kubernetes.namespace: must be 1 to 63 lower-case letters, digits and inner hyphens (got "My_Space")`},
		"kubernetes.node_selector": {`kubernetes.node_selector = ["disk"]`,
			`kubernetes.node_selector[0]: must be a label of nodes in the form NAME=VALUE (got "disk")`},
		"kubernetes.runtime_class": {`kubernetes.runtime_class = "g/visor"`,
			`kubernetes.runtime_class: must be the name of an object: at most 253 lower-case letters, digits, '-' and '.' (got "g/visor")`},
		"kubernetes.priority_class": {`kubernetes.priority_class = "High"`,
			`kubernetes.priority_class: must be the name of an object: at most 253 lower-case letters, digits, '-' and '.' (got "High")`},
		"kubernetes.service_account": {`kubernetes.service_account = "A b"`,
			`kubernetes.service_account: must be the name of an object: at most 253 lower-case letters, digits, '-' and '.' (got "A b")`},
		"kubernetes.pod_labels": {`kubernetes.pod_labels = ["team"]`,
			`kubernetes.pod_labels[0]: must be a label in the form NAME=VALUE (got "team")`},
		"kubernetes.pod_labels: ours": {`kubernetes.pod_labels = ["a=b", "sandbox.internal/batch=x"]`,
			`kubernetes.pod_labels[1]: must not be a label of our own (got "sandbox.internal/batch")`},
		"kubernetes.pod_annotations": {`kubernetes.pod_annotations = ["a b=c"]`,
			`kubernetes.pod_annotations[0]: must be an annotation in the form NAME=VALUE (got "a b=c")`},
		"kubernetes.affinity": {`kubernetes.affinity = "zone"`,
			`kubernetes.affinity: must be a JSON object, as the affinity of a pod (got "zone")`},
		"kubernetes.cpu_request_percent": {`kubernetes.cpu_request_percent = 0`,
			`kubernetes.cpu_request_percent: must be 1 to 100 (got 0)`},
		"kubernetes.run_as_user": {`kubernetes.run_as_user = -1`,
			`kubernetes.run_as_user: must be 0, for the user of the image, or 1 to 2147483647 (got -1)`},
		"kubernetes.memory_request_percent": {`kubernetes.memory_request_percent = 101`,
			`kubernetes.memory_request_percent: must be 1 to 100 (got 101)`},
		"kubernetes.ephemeral_storage": {`kubernetes.ephemeral_storage = "much"`,
			`kubernetes.ephemeral_storage: must be a whole number of bytes with an optional suffix such as Mi or Gi (got "much")`},
		"kubernetes.tolerations: an effect": {`kubernetes.tolerations = [{key = "a", effect = "Never"}]`, `kubernetes.tolerations[0].effect: must be NoSchedule, PreferNoSchedule or NoExecute (got "Never")`},
		"kubernetes.tolerations: a value":   {`kubernetes.tolerations = [{operator = "Exists", value = "x"}]`, `kubernetes.tolerations[0].value: has no use with the operator Exists (got "x")`},
		"kubernetes.tolerations: without a key": {`kubernetes.tolerations = [{value = "x"}]`,
			`kubernetes.tolerations[0].operator: must be Exists without a key`},
		"kubernetes.tolerations: a time": {`kubernetes.tolerations = [{key = "a", toleration_seconds = 1}]`, `kubernetes.tolerations[0].toleration_seconds: needs the effect NoExecute`},
		"case of a key": {`server.Port = 1`,
			`server.Port: unknown key; did you mean server.port?`},
		"nothing similar": {`server.zzzzzzzzz = 1`,
			`server.zzzzzzzzz: unknown key`},
		"quoted key": {`server."a b.c" = 1`,
			`server."a b.c": unknown key`},
		"mask from config print": {`server.api_key = "********"`,
			`server.api_key: is the mask that stands for the key in printed settings: write the real key`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			// A dotted key stands before the first header, or it would belong to it.
			content := "\n\n\n" + tt.add + "\n" + minimal
			env := home
			if name == "host network elsewhere" {
				env = environment(map[string]string{"HOME": "/h",
					"DOCKER_HOST": "tcp://engine.example:2376"})
			}
			_, err := config.Load(write(t, content), env)
			if want := place + tt.want; err == nil || err.Error() != want {
				t.Errorf("got  %v\nwant %s", err, want)
			}
		})
	}
}

func TestLoadRefusesRuntimes(t *testing.T) {
	tests := map[string]struct{ content, want string }{
		"row lifecycle/configuration/kubernetes.kubeconfig_path: missing":  {"[runtime]\ntype = \"kubernetes\"\nexecd_image = \"x\"\n[kubernetes]\nkubeconfig_path = \"/no/such/file\"", `sandbox.toml:5: kubernetes.kubeconfig_path: must be a file that the server can read: open /no/such/file: no such file or directory`},
		"row lifecycle/configuration/kubernetes.kubeconfig_path: relative": {"[runtime]\ntype = \"kubernetes\"\nexecd_image = \"x\"\n[kubernetes]\nkubeconfig_path = \"config\"", `sandbox.toml:5: kubernetes.kubeconfig_path: must be an absolute path (got "config")`},
		"a class that is no object": {"[runtime]\ntype = \"kubernetes\"\nexecd_image = \"x\"\nclasses = [{name = \"a\", handler = \"/bin/runsc\"}]",
			`sandbox.toml:4: runtime.classes[0].handler: must be the name of a RuntimeClass: at most 253 lower-case letters, digits, '-' and '.' (got "/bin/runsc")`},
		"a profile for pods": {"[runtime]\ntype = \"kubernetes\"\nexecd_image = \"x\"\n[docker]\nseccomp_profile = \"/p.json\"", `sandbox.toml:5: docker.seccomp_profile: must be empty or unconfined with the kubernetes runtime: a profile would have to be on every node (got "/p.json")`},
		"gateway of nothing": {"[runtime]\ntype = \"kubernetes\"\nexecd_image = \"x\"\n[ingress]\nmode = \"gateway\"", `sandbox.toml: ingress.gateway.address: is required when ingress.mode is gateway
sandbox.toml: ingress.gateway.route.mode: is required when ingress.mode is gateway`},
		"gateway of the local engine": {"[runtime]\ntype = \"local\"\nexecd_image = \"x\"\n[ingress]\nmode = \"gateway\"",
			`sandbox.toml:5: ingress.mode: must be direct, because the local runtime requires it (got "gateway")`},
		"IPv6 with the local engine": {"[server]\nhost = \"::1\"\n[runtime]\ntype = \"local\"\nexecd_image = \"x\"", `sandbox.toml:2: server.host: must be an IPv4 address, a host name or :: with the local runtime, which publishes ports for IPv4 alone (got "::1")`},
		"local.data_dir":             {"[runtime]\ntype = \"local\"\nexecd_image = \"x\"\n[local]\ndata_dir = \"data\"", `sandbox.toml:5: local.data_dir: must be an absolute path (got "data")`},
		"local.oci_runtime":          {"[runtime]\ntype = \"local\"\nexecd_image = \"x\"\n[local]\noci_runtime = \"youki\"", `sandbox.toml:5: local.oci_runtime: must be crun, runc or runsc, or the absolute path of one (got "youki")`},
		"local.keeper":               {"[runtime]\ntype = \"local\"\nexecd_image = \"x\"\n[local]\nkeeper = \"sandbox-keeper\"", `sandbox.toml:5: local.keeper: must be an absolute path (got "sandbox-keeper")`},
		"local.bridge":               {"[runtime]\ntype = \"local\"\nexecd_image = \"x\"\n[local]\nbridge = \"a/b\"", `sandbox.toml:5: local.bridge: must be at most 11 letters, digits and "-", and not begin with "-" (got "a/b")`},
		"local.subnet":               {"[runtime]\ntype = \"local\"\nexecd_image = \"x\"\n[local]\nsubnet = \"10.88.0.1/16\"", `sandbox.toml:5: local.subnet: must be an IPv4 range from /8 to /24 without bits after the prefix, such as 10.88.0.0/16 (got "10.88.0.1/16")`},
		"local.user_namespaces":      {"[runtime]\ntype = \"local\"\nexecd_image = \"x\"\n[local]\nuser_namespaces = \"yes\"", `sandbox.toml:5: local.user_namespaces: must be auto, on or off (got "yes")`},
		"local.archives":             {"[runtime]\ntype = \"local\"\nexecd_image = \"x\"\n[local]\narchives = [\"a.tar\"]", `sandbox.toml:5: local.archives[0]: must be an absolute path (got "a.tar")`},
		"local.images_mib":           {"[runtime]\ntype = \"local\"\nexecd_image = \"x\"\n[local]\nimages_mib = -1", `sandbox.toml:5: local.images_mib: must be from 0 to 8796093022207, where 0 is no limit (got -1)`},
		"local.disk_mib":             {"[runtime]\ntype = \"local\"\nexecd_image = \"x\"\n[local]\ndisk_mib = 15", `sandbox.toml:5: local.disk_mib: must be 0, for no limit, or from 16 to 1048576 (got 15)`},
		"large local.images_mib":     {"[runtime]\ntype = \"local\"\nexecd_image = \"x\"\n[local]\nimages_mib = 17592186044416", `sandbox.toml:5: local.images_mib: must be from 0 to 8796093022207, where 0 is no limit (got 17592186044416)`},
		"a registry's mirrors twice": {"[runtime]\ntype = \"local\"\nexecd_image = \"x\"\n[[local.mirrors]]\nregistry = \"docker.io\"\nhosts = [\"a\"]\n[[local.mirrors]]\nregistry = \"docker.io\"\nhosts = [\"b\"]", `sandbox.toml:8: local.mirrors[1].registry: names "docker.io" again: one entry has all hosts of a registry`},
		"local.mirrors":              {"[runtime]\ntype = \"local\"\nexecd_image = \"x\"\n[[local.mirrors]]\nregistry = \"docker.io\"\nhosts = []", `sandbox.toml:6: local.mirrors[0].hosts: must name at least one host`},
		"unknown": {"[runtime]\ntype = \"podman\"\nexecd_image = \"x\"",
			`sandbox.toml:2: runtime.type: must be local, docker or kubernetes (got "podman")`},
		"image with spaces": {"[runtime]\ntype = \"docker\"\nexecd_image = \"a b\"",
			`sandbox.toml:3: runtime.execd_image: must be an image reference without spaces (got "a b")`},
		"runtime no table": {"runtime = \"docker\"",
			`sandbox.toml:1: runtime: must be a section (got a string)`},
		"empty file": {"",
			"sandbox.toml: runtime.execd_image: is required\nsandbox.toml: runtime.type: is required (local, docker or kubernetes)"},
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

func TestLoadRefusesRuntimeClasses(t *testing.T) {
	for name, tt := range map[string]struct{ add, want string }{
		"class without a handler": {`classes = [{name = "a"}]`,
			`runtime.classes[0].handler: is required`},
		"class without a name": {`classes = [{handler = "runsc"}]`,
			`runtime.classes[0].name: is required`},
		"class in upper case": {`classes = [{name = "GVisor", handler = "runsc"}]`,
			`runtime.classes[0].name: must be 1 to 63 lower-case letters, digits and inner hyphens (got "GVisor")`},
		"two classes of one name": {`classes = [{name = "a", handler = "b"}, {name = "a", handler = "c"}]`,
			`runtime.classes[1].name: must be unique ("a" is used by an earlier class)`},
		"handler with a space": {`classes = [{name = "a", handler = "b c"}]`,
			`runtime.classes[0].handler: must be a name without spaces (got "b c")`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := config.Load(write(t, minimal+tt.add), home)
			if want := "sandbox.toml:4: " + tt.want; err == nil || err.Error() != want {
				t.Errorf("got  %v\nwant %s", err, want)
			}
		})
	}
}

func TestLoadRuntimeClasses(t *testing.T) {
	got := load(t, minimal+`[[runtime.classes]]
name = "gvisor"
handler = "runsc"
[[runtime.classes]]
name = "plain"
handler = "runc"
egress_sidecar = true
`, home).Runtime.Classes
	want := []config.RuntimeClass{{Name: "gvisor", Handler: "runsc"}, {Name: "plain", Handler: "runc", EgressSidecar: true}}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
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

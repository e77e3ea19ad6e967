package config_test

import (
	"errors"
	"strings"
	"testing"

	"sandbox.internal/server/config"
)

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

package config_test

import (
	"bytes"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"sandbox.internal/server/config"
)

// documented is the table "Runtime configuration (server)" of the lifecycle
// document: every key with its default, or its value "in the example". Nil is a key
// whose default is "none" or "unset". Those of [sandbox] are in the document's section [docker].
var documented = map[string]any{
	"server.host":          "0.0.0.0",
	"server.port":          int64(8080),
	"server.log_level":     "INFO",
	"server.api_key":       nil,
	"runtime.type":         nil,
	"runtime.execd_image":  nil,
	"sandbox.network_mode": "bridge",
	"sandbox.drop_capabilities": []any{"AUDIT_WRITE", "MKNOD", "NET_ADMIN", "NET_RAW", "SYS_ADMIN",
		"SYS_MODULE", "SYS_PTRACE", "SYS_TIME", "SYS_TTY_CONFIG"},
	"sandbox.no_new_privileges":  true,
	"sandbox.apparmor_profile":   "",
	"sandbox.pids_limit":         int64(512),
	"sandbox.seccomp_profile":    "",
	"docker.api_timeout":         int64(180),
	"sandbox.host_ip":            nil,
	"egress.image":               nil,
	"ingress.mode":               "direct",
	"ingress.gateway.address":    nil,
	"ingress.gateway.route.mode": nil,
	"storage.allowed_host_paths": []any{},
	"kubernetes.kubeconfig_path": nil,
	"kubernetes.namespace":       nil,
}

// extensions are our own keys.
var extensions = []string{
	"server.api_key_file", "server.data_dir", "server.instance", "server.terminated_retention",
	"server.max_connections", "server.max_sandboxes", "server.max_snapshots", "server.max_snapshots_mib", "server.default_image", "server.default_timeout", "server.keys.max_sandboxes", "server.compatibility", "server.audit_log", "server.signing_key", "server.debug_address",
	"server.mcp", "server.console",
	"e2b.domain", "e2b.allow_images", "e2b.templates.name", "e2b.templates.image", "e2b.templates.entrypoint", "e2b.templates.cpu",
	"e2b.templates.memory", "e2b.templates.user", "e2b.templates.working_directory",
	"local.data_dir", "local.oci_runtime", "local.keeper", "local.bridge", "local.subnet", "local.user_namespaces", "local.disk_mib", "local.keep_across_reboot", "local.archives", "local.images_mib",
	"local.gpu_kind", "local.confine_processors",
	"runtime.internal_registries",
	"server.limits.default_cpu", "server.limits.default_memory", "server.limits.max_cpu", "server.limits.max_memory",
	"server.limits.total_cpu", "server.limits.total_memory", "server.limits.max_timeout",
	"server.keys.limits.default_cpu", "server.keys.limits.default_memory", "server.keys.limits.max_cpu", "server.keys.limits.max_memory",
	"server.keys.limits.total_cpu", "server.keys.limits.total_memory", "server.keys.limits.max_timeout",
	"local.insecure_registries", "local.mirrors.registry", "local.mirrors.hosts",
	"runtime.classes.name", "runtime.classes.handler", "runtime.classes.egress_sidecar",
	"sandbox.allow_unenforced_limits", "docker.spare_networks", "docker.confine_processors", "storage.host_volumes", "egress.upstream",
	"kubernetes.provision_timeout",
	"kubernetes.runtime_class", "kubernetes.priority_class", "kubernetes.node_selector",
	"kubernetes.ephemeral_storage", "kubernetes.service_account", "kubernetes.pod_labels",
	"kubernetes.pod_annotations", "kubernetes.host_users", "kubernetes.run_as_user", "kubernetes.affinity",
	"kubernetes.cpu_request_percent", "kubernetes.memory_request_percent",
	"kubernetes.tolerations.key", "kubernetes.tolerations.operator", "kubernetes.tolerations.value",
	"kubernetes.tolerations.effect",
	"kubernetes.tolerations.toleration_seconds",
	"server.keys.name", "server.keys.sha256", "server.keys.role",
	"server.keys.rate_limit.requests_per_second", "server.keys.rate_limit.burst",
	"server.rate_limit.requests_per_second", "server.rate_limit.burst",
	"server.rate_limit.failed_attempts_per_minute",
	"telemetry.endpoint", "telemetry.traces", "telemetry.sample_percent", "telemetry.metrics", "telemetry.interval",
	"webhooks.url", "webhooks.events", "webhooks.secret", "webhooks.secret_file", "webhooks.previous_secret", "webhooks.previous_secret_file", "webhooks.allow_private",
}

func TestKeysAreTheDocumentsAndOurs(t *testing.T) {
	want := slices.Sorted(slices.Values(append(slices.Collect(maps.Keys(documented)),
		extensions...)))
	if got := slices.Sorted(slices.Values(config.Keys())); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestDefaultsAreTheDocuments(t *testing.T) {
	var out bytes.Buffer
	if err := config.Print(&out, config.Default(home)); err != nil {
		t.Fatal(err)
	}
	got := leaves(t, out.String())
	for key, want := range documented {
		if want == nil {
			want = ""
		}
		if !reflect.DeepEqual(got[key], want) {
			t.Errorf("%s: got %#v, want %#v", key, got[key], want)
		}
	}
}

// TestInitLoadsToTheDefaults but for what keeps the service closed, and sandboxes fast.
func TestInitLoadsToTheDefaults(t *testing.T) {
	want := config.Default(home)
	want.Runtime.Type, want.Runtime.ExecdImage = config.RuntimeDocker, "sandbox/execd:dev"
	const key = "0123456789abcdef0123456789abcdef"
	// closed
	want.Server.Host, want.Server.APIKey, want.Storage.HostVolumes = "127.0.0.1", key, false
	want.Docker.SpareNetworks = 2
	want.Server.Limits.DefaultCPU, want.Server.Limits.DefaultMemory = "2", "2Gi" // no sandbox without a bound
	if got := load(t, string(config.Init(key)), home); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestInitShowsEveryKey(t *testing.T) {
	// A setting that is off has no space after its "#"; prose has one.
	off := regexp.MustCompile(`(?m)^#([a-z\[])`)
	shown := leaves(t, off.ReplaceAllString(string(config.Init("key")), "$1"))
	got, want := slices.Sorted(maps.Keys(shown)), slices.Sorted(slices.Values(config.Keys()))
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// TestPageNamesEveryKey: docs/configuration.md has a row for each key and each variable.
func TestPageNamesEveryKey(t *testing.T) {
	page, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(config.Keys(), "SANDBOX_CONFIG_PATH", "DOCKER_HOST",
		"PENDING_FAILURE_TTL") {
		if !bytes.Contains(page, []byte("\n| `"+name+"` | ")) {
			t.Errorf("no table of docs/configuration.md has a row for %s", name)
		}
	}
}

func TestPrintLoadsBack(t *testing.T) {
	env := environment(map[string]string{"HOME": "/home/ada", "DOCKER_HOST": "tcp://127.0.0.1:2375",
		"PENDING_FAILURE_TTL": "7"})
	want := load(t, minimal+`[server]
port = 0
data_dir = '/with "quotes" and \'
keys = [{name = "a", sha256 = "`+digestA+`", role = "user", rate_limit = {requests_per_second = 5}}, {name = "b", sha256 = "`+digestOfSecret+`", role = "viewer"}]
[docker]
drop_capabilities = []
no_new_privileges = false
`, env)
	var out bytes.Buffer
	if err := config.Print(&out, want); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"DOCKER_HOST=tcp://127.0.0.1:2375\n", "PENDING_FAILURE_TTL=7\n"} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("%q is not in\n%s", line, out.String())
		}
	}
	want.FromDocker = nil // it prints the section [sandbox]
	if got := load(t, out.String(), env); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v\nprinted\n%s", got, want, out.String())
	}
}

func TestPrintMasksTheKeyAndTheMaskDoesNotLoad(t *testing.T) {
	c := load(t, minimal+"[server]\napi_key = \"hunter2\"\n", home)
	var out bytes.Buffer
	if err := config.Print(&out, c); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "hunter2") {
		t.Fatalf("the key is in\n%s", out.String())
	}
	_, err := config.Load(write(t, out.String()), home)
	if err == nil || !strings.Contains(err.Error(), "server.api_key: is the mask") {
		t.Fatalf("got %v, want the mask to be refused", err)
	}
	load(t, strings.Replace(out.String(), "********", "hunter2", 1), home)
}

// FuzzLoad holds that no file makes Load panic, that every problem names the
// file, and that what loads also prints and loads back.
func FuzzLoad(f *testing.F) {
	f.Add(string(config.Init("key")))
	f.Add(minimal + "[[server.keys]]\nname = \"a\"\n[server.keys.x]\n[server.keys.x]\n")
	f.Add(minimal + "[server]\nkeys = [{name = 'a', name = 'b'}]\nport = 1979-05-27")
	f.Add("a.b.c = null\n[a]\n[[a.b]]\n\"\" = [[[1, {}], # x\n]]")
	f.Fuzz(func(t *testing.T, doc string) {
		file := write(t, doc)
		c, err := config.Load(file, home)
		if err != nil {
			if !strings.HasPrefix(err.Error(), file+":") {
				t.Errorf("the error does not begin with the file: %v", err)
			}
			return
		}
		c.Server.APIKey = ""            // masked, so it would not load back
		c.FromDocker = nil              // printed in [sandbox]
		c.Webhooks = []config.Webhook{} // their secrets are masked
		var out bytes.Buffer
		if err := config.Print(&out, c); err != nil {
			t.Fatal(err)
		}
		if got := load(t, out.String(), home); !reflect.DeepEqual(got, c) {
			t.Errorf("got  %+v\nwant %+v", got, c)
		}
	})
}

// leaves flattens a document to its dotted keys; entries of arrays of tables
// share one name, as in server.keys.name.
func leaves(t *testing.T, doc string) map[string]any {
	t.Helper()
	var tree map[string]any
	if err := toml.Unmarshal([]byte(doc), &tree); err != nil {
		t.Fatal(err)
	}
	flat := map[string]any{}
	var walk func(prefix string, table map[string]any)
	walk = func(prefix string, table map[string]any) {
		for name, value := range table {
			switch v := value.(type) {
			case map[string]any:
				walk(prefix+name+".", v)
				continue
			case []any:
				if len(v) > 0 {
					if entry, ok := v[0].(map[string]any); ok {
						walk(prefix+name+".", entry)
						continue
					}
				}
			}
			flat[prefix+name] = value
		}
	}
	walk("", tree)
	return flat
}

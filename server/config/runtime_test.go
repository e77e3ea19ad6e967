package config_test

import (
	"slices"
	"testing"

	"sandbox.internal/server/config"
)

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

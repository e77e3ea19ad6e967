package architecture_test

import "slices"

// importRules are the rules for imports of docs/architecture.md. An internal directory needs none:
// the compiler holds it.
type importRules struct {
	forbidden []forbiddenLink
	libraries []libraryRule
	names     []string // names that no package may have
}

// forbiddenLink lists what packages must not link, directly or through other packages.
type forbiddenLink struct {
	packages  []string // patterns, without the module's path
	except    []string // patterns of packages that may
	tests     bool     // the rule holds for the imports of tests too
	ours      []string // patterns of our packages
	libraries []string // paths of packages that are not ours
	why       string
}

// libraryRule permits the import of libraries to the named packages only.
type libraryRule struct {
	libraries []string
	packages  []string
}

const (
	echo       = "github.com/labstack/echo"
	kinOpenAPI = "github.com/getkin/kin-openapi"
	sqlite     = "modernc.org/sqlite"
)

var (
	docker     = []string{"github.com/docker", "github.com/moby/moby", "github.com/moby/client"}
	kubernetes = []string{"k8s.io", "sigs.k8s.io"}
	netfilter  = []string{"github.com/google/nftables", "github.com/mdlayher/netlink"}

	// Each program of this repository belongs to one of them.
	inside  = []string{"execd/...", "egress/...", "taskexecutor/..."}
	clients = []string{"clients/..."}
	outside = []string{"server/..."}
	// What adapters and services share.
	contracts = []string{"gen/...", "openapi/..."}
)

// all joins lists of patterns.
func all(lists ...[]string) []string { return slices.Concat(lists...) }

var projectRules = importRules{
	forbidden: []forbiddenLink{
		{
			packages:  inside,
			ours:      all(outside, clients, []string{"gen/lifecycle", "runtime/docker", "runtime/oci/...", "runtime/kube/..."}),
			libraries: all(docker, kubernetes, []string{sqlite}),
			why:       "programs inside of a sandbox know nothing of what runs it, and stay small static binaries",
		},
		{
			packages: []string{"execd/..."},
			ours:     []string{"egress/...", "taskexecutor/..."},
			why:      "each program inside of a sandbox has its own directory",
		},
		{
			packages: []string{"egress/...", "taskexecutor/..."},
			ours:     []string{"execd/..."},
			why:      "each program inside of a sandbox has its own directory",
		},
		{
			packages: outside,
			ours:     inside,
			why:      "a service uses the programs inside of a sandbox through their contracts only",
		},
		{
			packages:  clients,
			ours:      all(outside, inside, []string{"runtime/...", "openapi/serve", "openapi/document"}),
			libraries: all(docker, kubernetes, []string{sqlite}),
			why:       "clients use the published contracts alone",
		},
		{
			packages:  []string{"runtime/..."},
			ours:      all(outside, inside, clients, contracts),
			libraries: []string{echo},
			why:       "adapters know the outside world and nothing of the API",
		},
		{
			packages: []string{"internal/..."},
			ours:     all(outside, inside, clients, contracts, []string{"runtime/..."}),
			why:      "every other package may use them",
		},
		{
			packages: []string{"openapi/..."},
			ours:     all(outside, inside, clients, []string{"gen/...", "runtime/..."}),
			why:      "services and clients use them",
		},
		{
			packages:  all(outside, inside),
			ours:      []string{"openapi/document"},
			libraries: []string{kinOpenAPI},
			why:       "services use openapi/rules: reading a whole contract would be most of execd's start",
		},
		{
			packages: []string{
				"server/lifecycle", "server/host", "server/box", "server/cluster/...", "server/store", "server/config", "server/audit", "server/webhooks", "server/proxy",
				"execd/code", "execd/command", "execd/config", "execd/files", "execd/proxy", "execd/terminal", "execd/internal/...",
				"egress/config", "egress/dnsproxy", "egress/enforcer", "egress/firewall", "egress/policy", "taskexecutor",
			},
			ours:      contracts,
			libraries: []string{echo},
			why:       "types of the API end at the handlers",
		},
		{
			packages:  []string{"server/lifecycle", "runtime/engine", "runtime/kernel"},
			ours:      all(outside, []string{"runtime/..."}),
			libraries: all(docker, kubernetes, []string{sqlite, echo}),
			why:       "rules and interfaces have no implementation behind them",
		},
		{
			packages:  all(outside, []string{"bench/..."}),
			except:    []string{"server/app", "server/cmd/sandbox-server", "server/cmd/sandbox-keeper"},
			ours:      []string{"runtime/docker", "runtime/oci/..."},
			libraries: docker,
			why:       "server/app alone wires the engines",
		},
		{
			packages:  all(outside, []string{"bench/..."}),
			except:    []string{"server/app", "server/cmd/sandbox-server", "server/store"},
			ours:      []string{"server/store"},
			libraries: []string{sqlite},
			why:       "server/app alone wires the store",
		},
		{
			packages:  outside,
			except:    []string{"server/app", "server/cluster/...", "server/cmd/sandbox-controller", "server/cmd/sandbox-ingress", "server/cmd/sandbox-server"},
			ours:      []string{"runtime/kube/...", "server/cluster/..."},
			libraries: kubernetes,
			why:       "one machine needs no Kubernetes",
		},
		{
			packages: []string{"server/cluster/...", "server/cmd/sandbox-ingress"},
			ours:     []string{"server/host", "runtime/kube/manager"},
			why:      "the backend of a cluster uses the cluster's resources only, and so does the ingress",
		},
		{
			packages: []string{"server/cluster/view", "server/cmd/sandbox-ingress"},
			ours:     []string{"server/cluster"},
			why:      "the read model and the ingress only read",
		},
		{
			packages:  []string{"runtime/docker", "runtime/oci/..."},
			ours:      []string{"runtime/kube/..."},
			libraries: kubernetes,
			why:       "an adapter imports its interface and its library",
		},
		{
			packages:  []string{"runtime/oci/..."},
			ours:      []string{"runtime/docker"},
			libraries: []string{"github.com/docker/docker", "github.com/moby/moby", "github.com/moby/client"},
			why:       "the engine of our own needs no Docker",
		},
		{
			packages: []string{"test/e2e", "test/e2e/browser", "test/e2e/clients", "test/e2e/local", "test/e2e/kube", "test/e2e/conformance/..."},
			tests:    true,
			ours:     inside,
			why:      "end-to-end tests use the programs inside of a sandbox through their contracts only",
		},
	},

	libraries: []libraryRule{
		{libraries: docker, packages: []string{"runtime/docker"}},
		{libraries: kubernetes, packages: []string{"runtime/kube/...", "server/cluster/...", "test/e2e/kube",
			"test/cluster/..."}},
		{libraries: []string{sqlite}, packages: []string{"server/store"}},
		{libraries: []string{"github.com/pkg/sftp", "golang.org/x/crypto/ssh"}, packages: []string{"clients/cli/sshserver", "test/e2e/clients"}},
		{libraries: []string{"go.opentelemetry.io/otel", "go.opentelemetry.io/contrib"}, packages: []string{"server/telemetry"}},
		{libraries: netfilter, packages: []string{"egress/firewall", "internal/nft", "runtime/oci/network"}},
	},

	names: []string{"util", "utils", "helper", "helpers", "common", "misc", "shared", "base"},
}

package architecture_test

import "slices"

// importRules are the rules for imports of docs/architecture.md.
type importRules struct {
	packages  []packageRule
	forbidden []forbiddenLink
	libraries []libraryRule
	names     []string // names that no package may have
}

// packageRule lists what packages may import directly. Every package of ours has exactly one.
// Imports of tests do not count, unless tests is set.
type packageRule struct {
	packages  []string // patterns, without the module's path
	ours      []string // patterns of our packages that they may import
	libraries []string // module paths they may import; nil means any, noLibraries none
	tests     bool     // the rule holds for the imports of tests too
}

// forbiddenLink lists what packages must not link, directly or through others.
type forbiddenLink struct {
	packages  []string
	ours      []string
	libraries []string
	why       string
}

// libraryRule permits the import of libraries to the named packages only.
type libraryRule struct {
	libraries []string
	packages  []string
}

const (
	echo        = "github.com/labstack/echo/v4"
	kinOpenAPI  = "github.com/getkin/kin-openapi"
	oapiRuntime = "github.com/oapi-codegen/runtime"
	zerolog     = "github.com/rs/zerolog"
	dns         = "github.com/miekg/dns"
	sysPackage  = "golang.org/x/sys"
	sqlite      = "modernc.org/sqlite"
	prometheus  = "github.com/prometheus"
	mcpLibrary  = "github.com/modelcontextprotocol/go-sdk"
	jsonSchema  = "github.com/google/jsonschema-go"

	runtimeSpec     = "github.com/opencontainers/runtime-spec"
	seccompProfiles = "github.com/moby/profiles/seccomp"
)

var (
	noLibraries = []string{}
	docker      = []string{"github.com/docker", "github.com/moby/moby", "github.com/moby/client"}
	kubernetes  = []string{"k8s.io", "sigs.k8s.io"}
	netfilter   = []string{"github.com/google/nftables", "github.com/mdlayher/netlink"}
	routing     = []string{"github.com/vishvananda"}
)

var projectRules = importRules{
	packages: []packageRule{
		{packages: []string{"."}, libraries: noLibraries},

		// The contracts and what is made from them.
		{packages: []string{"gen/..."}, libraries: []string{oapiRuntime, echo}},
		{packages: []string{"openapi", "openapi/rules"}, ours: []string{}, libraries: noLibraries},
		{packages: []string{"openapi/sse"}, ours: []string{}, libraries: noLibraries},
		{
			packages:  []string{"openapi/document"},
			ours:      []string{"openapi", "openapi/rules"},
			libraries: []string{kinOpenAPI},
		},
		{
			packages:  []string{"openapi/slim"},
			ours:      []string{"openapi/document"},
			libraries: []string{kinOpenAPI},
		},
		{packages: []string{"openapi/python"}, ours: []string{}, libraries: []string{kinOpenAPI}},
		{packages: []string{"sdk/python/synchronous"}, ours: []string{}, libraries: noLibraries},
		{
			packages:  []string{"openapi/conform", "openapi/serve/servetest"},
			ours:      []string{"openapi"},
			libraries: []string{kinOpenAPI},
		},
		{
			packages:  []string{"openapi/serve"},
			ours:      []string{"openapi/rules"},
			libraries: []string{echo, zerolog},
		},

		// Outside the sandbox.
		{packages: []string{"server/lifecycle"}, libraries: noLibraries},
		{packages: []string{"server/clock"}, ours: []string{}, libraries: noLibraries},
		{packages: []string{"server/host"}, ours: []string{"server/clock", "server/lifecycle"}},
		{
			packages: []string{"server/box"},
			ours: []string{
				"runtime/engine", "runtime/engine/fair", "runtime/engine/registries", "runtime/sandboxhttp", "server/clock", "server/lifecycle",
			},
		},
		{
			packages:  []string{"server/egress"},
			ours:      []string{"gen/egress", "runtime/sandboxhttp", "server/lifecycle"},
			libraries: noLibraries,
		},
		{packages: []string{"runtime/flock", "runtime/remove"}, ours: []string{}, libraries: []string{sysPackage}},
		{packages: []string{"runtime/netlinkmem"}, ours: []string{}},
		{packages: []string{"runtime/failpoint"}, ours: []string{}, libraries: noLibraries},
		{packages: []string{"server/store"}, ours: []string{"runtime/flock", "server/lifecycle"}},
		{packages: []string{"server/load"}, ours: []string{"server/lifecycle"}, libraries: []string{sysPackage}},
		{packages: []string{"server/config"}},
		{packages: []string{"server/audit"}, ours: []string{"runtime/flock"}},
		{
			packages: []string{"server/metrics"},
			ours:     []string{"openapi/serve", "runtime/engine", "server/host", "server/lifecycle"},
		},
		{packages: []string{"server/proxy"}, ours: []string{"runtime/forward", "runtime/sandboxhttp"}, libraries: []string{zerolog}},
		{
			packages:  []string{"server/reach"},
			ours:      []string{"openapi/serve", "server/lifecycle", "server/proxy"},
			libraries: noLibraries,
		},
		{
			packages: []string{"server/api"},
			ours: []string{
				"gen/lifecycle", "openapi/rules", "openapi/serve", "server/lifecycle",
				"server/proxy", "server/reach",
			},
		},
		{
			packages:  []string{"server/compat"},
			ours:      []string{"server/lifecycle", "server/reach"},
			libraries: []string{zerolog},
		},
		{
			packages: []string{"server/ingress"},
			ours: []string{
				"gen/lifecycle", "openapi/rules", "openapi/serve", "openapi/sse",
				"runtime/sandboxhttp", "server/clock", "server/lifecycle", "server/proxy",
				"server/reach",
			},
		},
		{
			packages: []string{"server/cluster/view"},
			ours:     []string{"runtime/kube/v1alpha1", "server/clock", "server/lifecycle"},
		},
		{
			packages: []string{"server/cluster"},
			ours: []string{
				"runtime/kube/v1alpha1", "server/clock", "server/cluster/view", "server/lifecycle",
			},
		},
		{
			packages: []string{"server/cmd/sandbox-ingress"},
			ours: []string{
				"server/build", "server/cluster/view", "server/commandline", "server/ingress",
			},
		},
		{packages: []string{"server/build"}, ours: []string{}, libraries: noLibraries},
		{packages: []string{"server/commandline"}, ours: []string{}, libraries: []string{"github.com/spf13"}},
		{
			packages:  []string{"server/commandline/commandlinetest"},
			ours:      []string{"server/commandline"},
			libraries: []string{"github.com/spf13"},
		},
		{packages: []string{"server/static"}, ours: []string{}, libraries: noLibraries},
		{packages: []string{"server/docsui"}, ours: []string{"openapi", "server/static"}},
		{
			packages:  []string{"server/console"},
			ours:      []string{"openapi/serve", "server/lifecycle", "server/static"},
			libraries: []string{echo},
		},
		{
			packages: []string{"server/cli"},
			ours: []string{
				"gen/lifecycle", "runtime/sandboxhttp", "sdk/go", "server/build", "server/cli/forward",
				"server/mcp",
			},
		},
		{packages: []string{"server/cli/forward"}, ours: []string{}, libraries: noLibraries},
		// What people program with: the contracts' clients and nothing of the services.
		{
			packages:  []string{"sdk/go"},
			ours:      []string{"gen/execd", "gen/lifecycle", "openapi/sse", "runtime/sandboxhttp"},
			libraries: []string{"github.com/coder/websocket"},
		},
		{packages: []string{"sdk/go/examples/..."}, ours: []string{"sdk/go"}, libraries: noLibraries},
		{
			packages:  []string{"examples/..."},
			ours:      []string{"sdk/go"},
			libraries: []string{"golang.org/x/sync"},
		},
		{
			packages:  []string{"server/mcp"},
			ours:      []string{"sdk/go"},
			libraries: []string{mcpLibrary, jsonSchema, "golang.org/x/sync"},
		},
		{
			packages:  []string{"server/mcp/endpoint"},
			ours:      []string{"openapi/serve", "sdk/go", "server/mcp"},
			libraries: []string{echo, mcpLibrary},
		},
		{
			packages: []string{"server/app", "server/cmd/sandbox-server"},
			ours:     []string{"gen/...", "openapi/...", "runtime/...", "server/..."},
		},
		{
			packages: []string{"server/cmd/sandbox-controller"},
			ours:     []string{"runtime/kube/manager", "server/build", "server/commandline"},
		},
		{packages: []string{"server/cmd/sandbox"}, ours: []string{"server/cli"}},
		{packages: []string{"server/cmd/sandbox-keeper"}, ours: []string{"runtime/oci/keeper"}, libraries: noLibraries},

		// Inside the sandbox.
		{packages: []string{"execd/process"}, ours: []string{}, libraries: []string{sysPackage}},
		{packages: []string{"execd/supervisor"}, ours: []string{"execd/process"}, libraries: []string{sysPackage}},
		{packages: []string{"execd/cmd/execd-init"}, ours: []string{"execd/process", "execd/supervisor"}, libraries: noLibraries},
		{packages: []string{"execd/cmd/egress-init", "execd/cmd/task-executor-init"}, ours: []string{"execd/supervisor"}, libraries: noLibraries},
		{packages: []string{"execd/eventlog"}},
		{packages: []string{"execd/invalid"}, ours: []string{}, libraries: noLibraries},
		{packages: []string{"execd/identity"}, ours: []string{}, libraries: []string{sysPackage}},
		{packages: []string{"execd/command"}, ours: []string{"execd/eventlog", "execd/identity", "execd/invalid", "execd/process"}},
		{packages: []string{"execd/terminal"}, ours: []string{"execd/identity", "execd/invalid", "execd/process"}},
		{packages: []string{"execd/code"}, ours: []string{"execd/eventlog", "execd/invalid", "runtime/kernel"}},
		{packages: []string{"execd/files"}, ours: []string{"execd/identity", "runtime/remove"}},
		{packages: []string{"execd/metrics", "execd/shell", "execd/watch"}},
		{packages: []string{"execd/proxy"}, ours: []string{"runtime/forward"}},
		{packages: []string{"execd/settings"}, ours: []string{}, libraries: noLibraries},
		{packages: []string{"execd/config"}, ours: []string{"execd/settings"}, libraries: noLibraries},
		{packages: []string{"execd/log"}, ours: []string{}, libraries: []string{zerolog}},
		{packages: []string{"execd/freeze"}, ours: []string{"execd/process"}, libraries: []string{sysPackage}},
		{packages: []string{"execd/probe"}, libraries: noLibraries},
		{packages: []string{"execd/api"}, ours: []string{
			"gen/execd", "openapi/rules", "openapi/serve", "runtime/claims", "runtime/sandboxhttp",
			"execd/code", "execd/command", "execd/eventlog", "execd/files", "execd/freeze", "execd/invalid",
			"execd/metrics", "execd/proxy", "execd/terminal", "execd/watch",
		}},
		{packages: []string{"execd/compat"}, ours: []string{"openapi/serve", "runtime/remove", "execd/code", "execd/command", "execd/files"}, libraries: []string{echo, sysPackage}},
		{packages: []string{"execd/task"}, ours: []string{"runtime/failpoint", "runtime/sandboxhttp", "runtime/tasks", "execd/process"}, libraries: []string{sysPackage, zerolog}},
		{packages: []string{"execd/cmd/task-executor"}, ours: []string{"runtime/tasks", "execd/log", "execd/settings", "execd/supervisor", "execd/task"}, libraries: []string{zerolog}},
		{packages: []string{"execd/app", "execd/cmd/execd"}, ours: []string{"gen/execd", "openapi/...", "runtime/...", "execd/..."}},

		// Between the sandbox and the network.
		{packages: []string{"execd/egress/policy"}, libraries: noLibraries},
		{packages: []string{"execd/egress/config"}, ours: []string{"execd/egress/policy", "execd/settings", "execd/supervisor"}, libraries: noLibraries},
		{packages: []string{"execd/egress/wall"}, ours: []string{"execd/egress/policy"}, libraries: append([]string{sysPackage}, netfilter...)},
		{packages: []string{"execd/egress/dnsproxy"}, ours: []string{"execd/egress/policy"}, libraries: []string{dns, zerolog}},
		{packages: []string{"execd/egress/guard"}, ours: []string{
			"execd/egress/policy", "execd/egress/wall",
		}, libraries: []string{zerolog}},
		{packages: []string{"execd/egress/api"}, ours: []string{
			"gen/egress", "openapi/rules", "openapi/serve", "execd/egress/guard", "execd/egress/policy",
		}},
		{packages: []string{"execd/egress/app", "execd/cmd/egress"}, ours: []string{
			"gen/egress", "openapi/...", "execd/log", "execd/supervisor", "execd/egress/...",
		}},

		// Adapters to the outside world, and what they are tested with.
		{
			packages:  []string{"runtime/engine", "runtime/engine/enginetest/probe"},
			libraries: noLibraries,
		},
		{
			packages: []string{"runtime/engine/enginetest"},
			ours:     []string{"runtime/engine", "test/program"},
		},
		{packages: []string{"runtime/engine/pull"}, ours: []string{"runtime/engine"}, libraries: noLibraries},
		{packages: []string{"runtime/engine/registries"}, ours: []string{}, libraries: []string{"github.com/distribution/reference"}},
		{packages: []string{"runtime/engine/fair"}, ours: []string{}, libraries: noLibraries},
		{
			packages:  []string{"runtime/profile"},
			ours:      []string{},
			libraries: []string{runtimeSpec, seccompProfiles, sysPackage},
		},
		{packages: []string{"runtime/docker"}, ours: []string{
			"runtime/engine", "runtime/engine/fair", "runtime/engine/pull", "runtime/engine/registries", "runtime/netlinkmem", "runtime/profile",
		}},
		{packages: []string{"runtime/oci/images/unpack"}, ours: []string{"runtime/remove"}, libraries: []string{sysPackage}},
		{
			packages: []string{"runtime/oci/images"},
			ours: []string{
				"runtime/engine", "runtime/engine/fair", "runtime/engine/pull", "runtime/engine/registries", "runtime/oci/images/unpack",
				"runtime/remove",
			},
			libraries: []string{
				"github.com/distribution/reference", "github.com/google/go-containerregistry",
				"github.com/klauspost/compress", "golang.org/x/net/http/httpproxy", "golang.org/x/sync", sysPackage, zerolog,
			},
		},
		{
			packages:  []string{"runtime/oci/bundle"},
			ours:      []string{"runtime/engine", "runtime/oci/seccomp", "runtime/profile"},
			libraries: []string{runtimeSpec, seccompProfiles, sysPackage},
		},
		{packages: []string{"runtime/oci/disk"}, ours: []string{}, libraries: []string{sysPackage}},
		{packages: []string{"runtime/oci/users"}, ours: []string{}, libraries: []string{sysPackage}},
		{
			packages:  []string{"runtime/oci/cgroup"},
			ours:      []string{"runtime/engine", "runtime/oci/thread"},
			libraries: []string{sysPackage},
		},
		{
			packages:  []string{"runtime/oci/seccomp"},
			ours:      []string{},
			libraries: []string{runtimeSpec, sysPackage},
		},
		{packages: []string{"runtime/oci/seccomp/table"}, ours: []string{}, libraries: noLibraries},
		{
			packages:  []string{"runtime/oci/thread"},
			ours:      []string{},
			libraries: []string{sysPackage},
		},
		{packages: []string{"runtime/oci/overlay"}, ours: []string{"runtime/oci/thread"}, libraries: []string{sysPackage}},
		{
			packages:  []string{"runtime/oci/keeper"},
			ours:      []string{"runtime/engine", "runtime/failpoint", "runtime/oci/overlay", "runtime/oci/thread"},
			libraries: []string{sysPackage, zerolog},
		},
		{packages: []string{"runtime/oci/network"}, ours: []string{"runtime/engine", "runtime/engine/registries", "runtime/flock", "runtime/oci/thread"}},
		{
			packages: []string{"runtime/oci"},
			ours: []string{
				"runtime/engine", "runtime/flock", "runtime/netlinkmem", "runtime/oci/bundle", "runtime/oci/cgroup", "runtime/oci/disk",
				"runtime/oci/images", "runtime/oci/keeper", "runtime/oci/network", "runtime/oci/overlay", "runtime/remove",
				"runtime/oci/thread", "runtime/oci/users",
			},
			libraries: []string{"github.com/fsnotify/fsnotify", "golang.org/x/sync", sysPackage, zerolog},
		},
		{
			packages: []string{"runtime/oci/bundle/probe"}, ours: []string{},
			libraries: []string{sysPackage},
		},
		{packages: []string{"runtime/kube/v1alpha1"}, libraries: kubernetes},
		{
			packages: []string{"runtime/kube/batch"},
			ours:     []string{"runtime/kube/v1alpha1", "runtime/sandboxhttp"},
		},
		{
			packages: []string{"runtime/kube/pool"},
			ours:     []string{"runtime/kube/v1alpha1", "runtime/tasks"},
		},
		{
			packages: []string{"runtime/kube/executor"},
			ours:     []string{"runtime/claims", "runtime/kube/v1alpha1", "runtime/tasks"},
		},
		{
			packages: []string{"runtime/kube/claim"},
			ours: []string{"runtime/claims", "runtime/failpoint", "runtime/kube/batch",
				"runtime/kube/v1alpha1", "runtime/sandboxhttp"},
		},
		{
			packages: []string{"runtime/kube/task"},
			ours:     []string{"runtime/kube/batch", "runtime/kube/v1alpha1", "runtime/tasks"},
		},
		{packages: []string{"runtime/kube/manager"}, ours: []string{"runtime/kube/..."}},
		{packages: []string{"runtime/kernel"}},
		{packages: []string{"runtime/forward", "runtime/sandboxhttp"}, ours: []string{}, libraries: noLibraries},
		{packages: []string{"runtime/claims"}, ours: []string{}, libraries: noLibraries},
		{
			packages:  []string{"runtime/tasks"},
			ours:      []string{"runtime/sandboxhttp"},
			libraries: noLibraries,
		},
		{
			packages: []string{"runtime/kernel/kerneltest", "runtime/jupyter"},
			ours:     []string{"runtime/kernel", "runtime/remove"},
		},

		// A real Kubernetes for tests, started by scripts.
		{
			packages:  []string{"test/cluster"},
			ours:      []string{"test/program"},
			libraries: noLibraries,
		},
		{packages: []string{"test/cluster/nodes"}, ours: []string{}},
		// Programs of ours for tests.
		{packages: []string{"test/bodies"}, tests: true, ours: []string{
			"execd/proxy", "openapi/rules", "openapi/serve", "server/ingress", "server/proxy",
		}},
		{packages: []string{"test/program", "test/random"}, ours: []string{}, libraries: noLibraries},
		{packages: []string{"test/snapshot"}, ours: []string{}, libraries: []string{sysPackage}},
		// The tests of the repository as a whole.
		{packages: []string{"test/architecture"}, tests: true, ours: []string{
			"execd/config", "execd/egress/config", "execd/files", "openapi/document", "server/config",
		}},
		{packages: []string{"deploy"}, tests: true, ours: []string{"test/program"}},
		{packages: []string{"deploy/compose"}, tests: true, ours: []string{"server/config"}},
		{packages: []string{"deploy/monitoring"}, tests: true, ours: []string{
			"server/ingress", "server/lifecycle", "server/metrics",
		}},
		{
			packages: []string{"deploy/helm"},
			tests:    true,
			ours:     []string{"server/config", "test/cluster"},
		},

		// End-to-end tests: execd is a program in a sandbox.
		{packages: []string{"test/e2e"}, tests: true, ours: []string{
			"test/e2e/lives", "gen/...", "openapi/conform", "openapi/sse", "runtime/engine", "runtime/docker",
			"server/api", "server/app", "server/config", "test/random",
		}},
		// Tests for every backend: no adapter, and of the server its configuration and its start.
		{packages: []string{"test/e2e/lives"}, tests: true, ours: []string{
			"gen/...", "openapi/conform", "openapi/document", "openapi/serve/servetest", "openapi/sse",
			"server/api", "server/app", "server/config", "server/lifecycle", "test/program",
		}},
		// The backend of tests on the service's own engine, whose store it makes.
		{packages: []string{"test/e2e/lives/onlocal"}, tests: true, ours: []string{"test/e2e/lives", "runtime/oci"}},
		{packages: []string{"test/e2e/local"}, tests: true, ours: []string{"test/e2e/lives/...", "test/random", "gen/..."}},
		{packages: []string{"test/e2e/clients"}, tests: true, ours: []string{
			"test/e2e/lives/...", "gen/...", "sdk/go", "server/config", "server/mcp", "server/mcp/endpoint",
		}},
		// The same on a cluster, with the access of its administrators.
		{packages: []string{"test/e2e/kube"}, tests: true, ours: []string{
			"test/e2e/lives", "gen/...", "runtime/kube/manager", "runtime/kube/v1alpha1", "test/cluster", "test/program", "test/random",
		}},
		{packages: []string{"test/e2e/coverage"}, tests: true},
		{packages: []string{"test/e2e/cells"}, tests: true, ours: []string{
			"gen/...", "openapi/conform", "openapi/document", "execd/app", "execd/config", "server/api", "server/app", "server/config",
			"test/program",
		}},
		// A kernel is the floor of execd's cells, and a Deployment that of a Pool.
		{packages: []string{"bench"}, tests: true, ours: []string{
			"bench/job", "bench/pattern", "gen/...", "openapi/sse", "runtime/kernel", "runtime/jupyter",
			"test/cluster",
		}},
		// Floors of the bench link as little as possible.
		{
			packages:  []string{"bench/job", "bench/pattern"},
			ours:      []string{},
			libraries: noLibraries,
		},
		{
			packages:  []string{"bench/floor"},
			ours:      []string{"bench/job", "bench/pattern"},
			libraries: noLibraries,
		},
	},

	forbidden: []forbiddenLink{
		{
			packages:  []string{"server/...", "execd/..."},
			ours:      []string{"openapi/document"},
			libraries: []string{kinOpenAPI},
			why:       "services use openapi/rules: reading a whole contract would be most of execd's start",
		},
		{
			packages:  []string{"execd/..."},
			ours:      []string{"server/...", "gen/lifecycle", "runtime/docker"},
			libraries: slices.Concat(docker, kubernetes, []string{sqlite}),
			why:       "execd is the half inside the sandbox, and stays a small static binary",
		},
		{
			packages: []string{"server/..."},
			ours:     []string{"execd/..."},
			why:      "the server is the half outside the sandbox, and uses execd through its API only",
		},
		{
			packages: []string{
				"server/lifecycle", "server/host", "server/cluster/...", "server/store", "server/config", "server/audit", "server/proxy", "runtime/...",
				"execd/command", "execd/files", "execd/metrics", "execd/proxy", "execd/shell", "execd/settings", "execd/config", "execd/log", "execd/process",
				"execd/freeze", "execd/identity", "execd/terminal", "execd/watch", "execd/probe", "execd/task", "execd/supervisor", "execd/egress/policy", "execd/egress/wall", "execd/egress/dnsproxy",
				"execd/egress/guard", "execd/egress/config",
			},
			ours:      []string{"gen/...", "openapi/..."},
			libraries: []string{"github.com/labstack/echo"},
			why:       "types of the API end at the handlers",
		},
		{
			packages: []string{
				"server/lifecycle", "server/host", "server/store", "server/config", "server/audit",
				"server/metrics", "server/proxy", "server/reach", "server/api", "server/ingress",
				"server/cli", "server/cmd/sandbox", "bench",
			},
			ours:      []string{"runtime/docker"},
			libraries: slices.Concat(docker, kubernetes),
			why:       "adapters are wired by server/app alone",
		},
		{
			packages: []string{
				"server/lifecycle", "server/host", "server/config", "server/audit",
				"server/metrics", "server/api", "server/ingress", "server/cmd/sandbox-ingress",
				"server/cli", "server/cmd/sandbox", "bench",
			},
			ours:      []string{"server/store"},
			libraries: []string{sqlite},
			why:       "the store is wired by server/app alone",
		},
		{
			packages:  []string{"server/cluster/...", "server/cmd/sandbox-ingress"},
			ours:      []string{"runtime/docker", "runtime/kube/batch", "server/host", "server/store"},
			libraries: append([]string{sqlite}, docker...),
			why:       "the backend of a cluster uses the cluster's resources only, and so does the ingress",
		},
		{
			packages: []string{"server/cluster/view", "server/cmd/sandbox-ingress"},
			ours:     []string{"server/cluster"},
			why:      "the read model and the ingress only read",
		},
		{
			packages: []string{"openapi/..."},
			ours:     []string{"gen/...", "server/...", "execd/...", "runtime/..."},
			why:      "both halves import it",
		},
		{
			packages:  []string{"runtime/docker"},
			ours:      []string{"server/...", "execd/..."},
			libraries: kubernetes,
			why:       "an adapter imports its interface and its library",
		},
	},

	libraries: []libraryRule{
		{libraries: docker, packages: []string{"runtime/docker"}},
		{libraries: kubernetes, packages: []string{"runtime/kube/...", "server/cluster/...", "test/e2e/kube",
			"test/cluster/nodes"}},
		{libraries: []string{sqlite}, packages: []string{"server/store"}},
		{libraries: []string{prometheus}, packages: []string{"server/metrics", "server/ingress", "runtime/kube/...", "test/e2e", "deploy/monitoring"}},
		{libraries: netfilter, packages: []string{"execd/egress/wall", "runtime/oci/network"}},
		{libraries: routing, packages: []string{"runtime/oci/network", "execd/egress/app", "test/e2e/lives/onlocal"}},
		{libraries: []string{dns}, packages: []string{"execd/egress/dnsproxy", "bench", "test/e2e/lives/onlocal"}},
		{libraries: []string{mcpLibrary}, packages: []string{"server/mcp/...", "test/e2e/clients"}},
		{libraries: []string{jsonSchema}, packages: []string{"server/mcp"}},
	},

	names: []string{"util", "utils", "helper", "helpers", "common", "misc", "shared", "base"},
}

# What a person types. Longer jobs are scripts/ or Go programs.
# Without the commit that the Go tool would stamp, so that a program changes only when its sources do, and with it images and cached test
# results. Programs outside of sandboxes have the commit that changed their sources last, from scripts/version.sh. Symbols for a
# debugger, which -s -w would drop, take a tenth of the time of a compilation.
# The compiler and the linker collect garbage less often, which takes a sixth of their time away; what they make is the same.
export GOFLAGS := $(shell go env GOFLAGS) '-toolexec=env GOGC=400'
COMPILED    = -trimpath -buildvcs=false -gcflags=all=-dwarf=false
GOBUILD     = CGO_ENABLED=0 go build $(COMPILED) -ldflags '-s -w' -o bin/new/
VERSIONED   = CGO_ENABLED=0 go build $(COMPILED) -ldflags "-s -w $$(scripts/version.sh | sed -E \
	's|(.*) (.*)|-X sandbox.internal/internal/build.version=\1 -X sandbox.internal/internal/build.commit=\2|')" -o bin/new/
# Of programs that are in every sandbox: HTTP/2 takes half a megabyte of each.
IN_SANDBOX  = -tags nethttpomithttp2
# A program that has not changed keeps its time: tests that use it are repeated when that changes.
REPLACE     = @for new in bin/new/*; do cmp -s $$new bin/$${new\#\#*/} || mv $$new bin/; done; rm -r bin/new
STATICCHECK = go run honnef.co/go/tools/cmd/staticcheck@v0.8.2
# Of all modules.
PACKAGES    = $(shell scripts/packages.sh --all)
# Checks look at what GOBUILD compiles, so that nothing is compiled for them alone.
CHECKED     = CGO_ENABLED=0 GOFLAGS="$$(go env GOFLAGS) $(COMPILED)"
FORMATTED   = test -z "$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go'))" || { gofmt -l .; echo "not formatted: run gofmt -w ."; exit 1; }

# Where `make run` keeps its key and records.
STATE = $${SANDBOX_STATE:-$${XDG_STATE_HOME:-$$HOME/.local/state}/sandbox-run}

.DEFAULT_GOAL := help
.PHONY: help run demo vet check test test-all test-cluster machines gvisor race bare bench gate generate drift lint build install uninstall dist push images engine clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

run: ## install what is missing, start the service, take a sandbox through its life (PORT=8080, ENGINE=local or docker)
	$(VERSIONED) ./clients/cmd/sandbox ./server/cmd/sandbox-server
	$(GOBUILD) ./server/cmd/sandbox-keeper
	$(GOBUILD) $(IN_SANDBOX) ./execd/cmd/execd ./execd/cmd/execd-init
	$(REPLACE)
	@scripts/run.sh

demo: build ## take a sandbox through its life on a service that runs (URL=http://127.0.0.1:8080)
	@SERVICE_API_KEY=$${SERVICE_API_KEY:-$$(cat $(STATE)/api.key 2>/dev/null)} bin/sandbox $(if $(URL),--url $(URL)) demo

vet: ## gofmt and vet
	@$(FORMATTED)
	$(CHECKED) go vet $(PACKAGES)

check: vet ## gofmt, vet, and the tests that need no engine, cluster, kernels or network: under a minute
	@$(CHECKED) scripts/check.sh

test: ## what needs no Docker Engine and no cluster (FLAGS=-count=1 runs also tests whose inputs have not changed)
	@scripts/test.sh $(FLAGS)

test-all: ## every test: also Docker, Kubernetes, a browser and the race detector; then the performance gate
	@scripts/test.sh --all $(FLAGS)

test-cluster: images ## the tests on a real Kubernetes, which is built the first time (about ten minutes)
	@scripts/images.sh server controller ingress python
	@test/cluster/build.sh
	CGO_ENABLED=1 go test -race -timeout 20m $(addsuffix /...,$(wildcard ./test/cluster ./runtime/kube ./server/cluster ./test/e2e/kube ./deploy/helm))

machines: ## the local engine on Debian 12 and 13 with cgroup v2 and no Docker, and on arm64, in QEMU (MACHINES="trixie-arm64 ...")
	@test/machine/boot.sh $(MACHINES)

gvisor: images ## the tests of the local engine with gVisor's runsc, which is built the first time (two minutes)
	@scripts/images.sh code-interpreter
	@scripts/images.sh --archives execd egress busybox base code-interpreter
	@scripts/gvisor.sh

bare: ## the commands of the README with every cache empty, before a release (LOGS=FOLDER keeps what they print)
	@scripts/bare.sh $(LOGS)

race: ## the tests of the packages given, e.g. PKG=./execd/..., with the race detector
	go test -race $(or $(PKG),$(PACKAGES))

bench: build images ## measure, as ratios to a floor taken in the same run
	@scripts/kernels.sh
	@scripts/crun.sh
	@scripts/podman.sh
	@scripts/images.sh --archives execd base
	PATH="$$(scripts/gvisor.sh --build):$$PATH" $(CHECKED) go run ./bench

gate: build images ## fail when a measured ratio has become worse than its baseline
	@scripts/kernels.sh
	@scripts/crun.sh
	@scripts/images.sh --archives execd base
	$(CHECKED) go run ./bench --gate

GENERATED = gen clients server/console/assets

generate: ## rebuild gen/, the generated part of clients/, and the web console (needs npm)
	go generate .

drift: generate ## fail if what is generated is not what its sources make
	@git diff --exit-code -- $(GENERATED)
	@test -z "$$(git status --porcelain -- $(GENERATED))" || { git status --short -- $(GENERATED); echo "untracked generated files: run make generate and commit"; exit 1; }

lint: vet ## gofmt, vet, staticcheck
	GOGC=400 $(CHECKED) $(STATICCHECK) $(PACKAGES)

build: ## compile the programs into bin/
	$(VERSIONED) ./clients/cmd/sandbox $(filter-out %/sandbox-keeper,$(wildcard ./server/cmd/*))
	$(GOBUILD) ./server/cmd/sandbox-keeper
	$(GOBUILD) $(IN_SANDBOX) ./execd/cmd/... ./egress/cmd/... ./taskexecutor/cmd/...
	$(REPLACE)

install: ## install what a release has: programs, images, manual, unit (PREFIX=/usr/local, DESTDIR=, PROGRAMS=FOLDER)
	@scripts/install.sh install

uninstall: ## remove what `make install` put there (PREFIX and DESTDIR as then)
	@scripts/install.sh uninstall

dist: ## make a release in dist/ (PLATFORMS="linux/amd64 ...", MINISIGN_KEY=FILE)
	@scripts/dist.sh

push: ## put the images and the chart of dist/ into a registry (REGISTRY=registry.example.org/sandbox)
	@scripts/push.sh $(REGISTRY)

images: engine build ## build the images sandbox/{execd,egress,task-executor,busybox,base}:dev
	@scripts/images.sh

engine: ## make sure that a Docker Engine answers
	@scripts/engine.sh

clean: ## remove what was built here; images and caches stay
	rm -rf bin dist

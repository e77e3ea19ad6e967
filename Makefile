# What a person types. Longer jobs are scripts/ or Go programs.
# Without the commit, so that a program changes only when its sources do, and with it images and cached test results.
GOBUILD     = CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-s -w'
STATICCHECK = go run honnef.co/go/tools/cmd/staticcheck@v0.8.2
# Checks look at what GOBUILD compiles, so that nothing is compiled for them alone.
CHECKED     = CGO_ENABLED=0 GOFLAGS="$$(go env GOFLAGS) -trimpath -buildvcs=false"

# Where `make run` keeps its key and records.
STATE = $${SANDBOX_STATE:-$${XDG_STATE_HOME:-$$HOME/.local/state}/sandbox-run}

.DEFAULT_GOAL := help
.PHONY: help run demo test test-cluster race bare bench gate generate drift lint build images engine clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

run: engine ## install what is missing, start the service, take a sandbox through its life (PORT=8080)
	@mkdir -p bin
	$(GOBUILD) -o bin/ ./server/cmd/sandbox ./server/cmd/sandbox-server ./execd/cmd/execd ./execd/cmd/execd-init
	@scripts/images.sh execd base
	@scripts/run.sh

demo: build ## take a sandbox through its life on a service that runs (URL=http://127.0.0.1:8080)
	@SERVICE_API_KEY=$${SERVICE_API_KEY:-$$(cat $(STATE)/api.key 2>/dev/null)} bin/sandbox $(if $(URL),--url $(URL)) demo

test: lint images ## all tests, on real parts
	@scripts/test.sh

test-cluster: images ## the tests on a real Kubernetes, which is built the first time (10 to 16 minutes)
	@scripts/images.sh server controller ingress python
	@test/cluster/build.sh
	CGO_ENABLED=1 go test -race -timeout 20m $(addsuffix /...,$(wildcard ./test/cluster ./runtime/kube ./server/cluster ./e2e/kube ./deploy/helm))

bare: ## both commands of the README with every cache empty, before a release (LOGS=FOLDER keeps what they print)
	@scripts/bare.sh $(LOGS)

race: ## the tests of the packages given, e.g. PKG=./execd/..., with the race detector
	go test -race $(or $(PKG),./...)

bench: build images ## measure, as ratios to a floor taken in the same run
	@scripts/kernels.sh
	go run ./bench

gate: build images ## fail when a measured ratio has become worse than its baseline
	@scripts/kernels.sh
	go run ./bench --gate

GENERATED = gen server/console/assets

generate: ## rebuild gen/ from openapi/, and the web console (needs npm)
	go generate .
	@scripts/console.sh

drift: generate ## fail if what is generated is not what its sources make
	@git diff --exit-code -- $(GENERATED)
	@test -z "$$(git status --porcelain -- $(GENERATED))" || { git status --short -- $(GENERATED); echo "untracked generated files: run make generate and commit"; exit 1; }

lint: ## gofmt, vet, staticcheck
	@test -z "$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go'))" || { gofmt -l .; echo "not formatted: run gofmt -w ."; exit 1; }
	$(CHECKED) go vet ./...
	$(CHECKED) $(STATICCHECK) ./...

build: ## compile the programs into bin/
	@mkdir -p bin
	$(GOBUILD) -o bin/ ./server/cmd/... ./execd/cmd/...

images: engine build ## build the images sandbox/{execd,egress,task-executor,busybox,base}:dev
	@scripts/images.sh

engine: ## make sure that a Docker Engine answers
	@scripts/engine.sh

clean: ## remove what was built here; images and caches stay
	rm -rf bin

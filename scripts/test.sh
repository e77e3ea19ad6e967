#!/usr/bin/env bash
# Runs every test, with the race detector. Called by `make test`, which has made sure of the engine and the images.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'test: %s\n' "$*"; }

# The race detector needs a C compiler; the examples of the documentation, which are run, need curl and jq.
missing=()
command -v gcc >/dev/null || missing+=(gcc libc6-dev)
for tool in curl jq; do
	command -v "$tool" >/dev/null || missing+=("$tool")
done
if ((${#missing[@]} > 0)); then
	if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
		printf 'test: missing: %s (install them)\n' "${missing[*]}" >&2
		exit 1
	fi
	say "installing ${missing[*]}"
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 "${missing[@]}" >/dev/null
fi

scripts/kernels.sh
scripts/browser.sh
scripts/node.sh sdk/typescript
scripts/node.sh test/e2e/clients/python
scripts/node.sh test/e2e/clients/opensandbox
scripts/node.sh server/console/web
scripts/python.sh
scripts/images.sh server controller ingress python code-interpreter
test/cluster/build.sh

if [[ $EUID -ne 0 ]]; then
	say "some tests mount file systems and make namespaces: they need root"
fi
go run ./bench --gate # first, while nothing else runs
scripts/fuzz.sh
# `make lint` has vetted the packages, and a test needs no symbols for a debugger, which take long to compile and link. Not
# with -trimpath: Go would repeat the results of another clone, whose files a test has opened by their paths, without a look at them here.
CGO_ENABLED=1 exec go test -race -vet=off -gcflags=all=-dwarf=false -ldflags=-w -timeout 20m "$@" ./...

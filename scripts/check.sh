#!/usr/bin/env bash
# Runs the tests that need no engine, no cluster, no Jupyter kernels and no network; --list prints
# their packages. Called by `make check`.
set -euo pipefail
cd "$(dirname "$0")/.."

module=sandbox.internal
# What tests import that need more: an engine, a cluster, kernels, or programs of ours in containers.
parts="runtime/docker|runtime/engine/enginetest|runtime/kernel/kerneltest|test/cluster|test/e2e/lives|test/program"
# These need more as well, without such an import: the kernels of every language; minutes by itself.
others="test/e2e/cells|execd/api"

packages() {
	go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.TestImports}} {{.XTestImports}}{{end}}' ./... |
		awk -v parts="[[ ]$module/($parts)[] ]" -v others="^$module/($others)$" '$0 !~ parts && $1 !~ others {print $1}'
}

if [[ ${1:-} == --list ]]; then
	packages
	exit
fi
if [[ $EUID -ne 0 ]]; then
	echo "check: some tests mount file systems and change users: they need root" >&2
fi
# An engine of this machine stays unused, so that a test that needs one fails here wherever it runs.
# Many tests wait for clocks: four packages run at once on two cores.
# Not with -trimpath: Go would repeat results of another clone without a look at the files here.
mapfile -t unit < <(packages)
GOFLAGS=$(sed "s|-trimpath||" <<<"${GOFLAGS:-}") DOCKER_HOST=unix:///dev/null exec go test -vet=off -p "$((2 * $(nproc)))" -timeout 5m "$@" "${unit[@]}"

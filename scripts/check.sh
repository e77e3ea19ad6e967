#!/usr/bin/env bash
# Runs the tests of the class unit of scripts/packages.sh. Called by `make check`.
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ $EUID -ne 0 ]]; then
	echo "check: some tests mount file systems and change users: they need root" >&2
fi
# An engine of this machine stays unused, so that a test that needs one fails here wherever it runs.
# Many tests wait for clocks: four packages run at once on two cores.
# Not with -trimpath: Go would repeat results of another clone without a look at the files here.
mapfile -t unit < <(scripts/packages.sh unit)
GOFLAGS=$(sed "s|-trimpath||" <<<"${GOFLAGS:-}") DOCKER_HOST=unix:///dev/null exec go test -vet=off -p "$((2 * $(nproc)))" -timeout 5m "$@" "${unit[@]}"

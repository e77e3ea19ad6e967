#!/usr/bin/env bash
# Builds gVisor's runsc from the Go module proxy into $SANDBOX_CACHE, and runs the tests of the local engine with it. Called by `make gvisor`.
# Arguments are passed on to `go test`. With --build it prints the folder of runsc instead of running the tests.
set -euo pipefail
cd "$(dirname "$0")/.."

version=v0.0.0-20260224225140-573d5e7127a8
folder=${SANDBOX_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sandbox}/gvisor-$version

say() { printf 'gvisor: %s\n' "$*" >&2; }

if [[ ! -x $folder/runsc ]]; then
	say "building runsc (two minutes, once)"
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	(
		export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -mod=mod" GOWORK=off
		cd "$work"
		printf 'module sandbox.internal/gvisor\ngo 1.25\nrequire gvisor.dev/gvisor %s\ntool gvisor.dev/gvisor/runsc\n' "$version" >go.mod
		go mod tidy
		go build -trimpath -gcflags=all=-dwarf=false -ldflags '-s -w' -o runsc gvisor.dev/gvisor/runsc
		mkdir -p "$folder"
		mv runsc "$folder/runsc.$$"
		mv "$folder/runsc.$$" "$folder/runsc" # complete, or not there
	)
fi
if [[ ${1:-} == --build ]]; then
	printf '%s\n' "$folder"
	exit
fi
export PATH=$folder:$PATH
# The engine's own tests run with every runtime that is in PATH, those of the whole with the one that is chosen.
go test -timeout 30m "$@" ./runtime/oci
go test -timeout 30m -run '^(TestConformance|TestEscape|TestGVisor)$' "$@" ./test/e2e/local -runtime runsc
go test -timeout 30m -run '^TestCells$/^sandbox_direct' "$@" ./test/e2e/cells -runtime runsc

#!/usr/bin/env bash
# Builds what is tested and runs every test, with the race detector. Called by scripts/test.sh, which has installed what they need, in its copy of
# the working tree. Usage: scripts/suite.sh [FLAG of go test...]
set -euo pipefail
shopt -s inherit_errexit # a failure inside $(...) counts too
cd "$(dirname "$0")/.."

say() { printf 'test: %s\n' "$*"; }

make --no-print-directory images
# The one mostly waits for packages, while the other compiles.
xargs -d '\n' -P 2 -I {} bash -ec '{}' <<-JOBS
	scripts/images.sh server controller ingress python code-interpreter && scripts/images.sh --archives execd egress busybox base python code-interpreter
	test/cluster/build.sh
JOBS

cache=${SANDBOX_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sandbox}
# facts prints what the results depend on besides this tree: the kernel, what is installed, and what the images are made of that hold no program
# of ours.
facts() {
	uname -srm
	dpkg-query --show 2>/dev/null || true
	docker version
	docker info --format "{{.Driver}} {{.CgroupVersion}} {{.DefaultRuntime}}"
	local name
	for name in busybox base python code-interpreter; do
		docker image inspect --format '{{.Id}}' "sandbox/$name:dev"
	done
	crun --version
	runc --version
	node --version
	ls "$cache" "$cache/kube"
}
machine=$(facts | sha256sum | cut -c1-16)

# `make lint` has vetted the packages, and a test needs no symbols for a debugger, which take long to compile and link. The machine is a note in
# the programs of the tests, so that the results of another one are not repeated.
run_tests() {
	CGO_ENABLED=1 go test -race -vet=off -gcflags=all=-dwarf=false -ldflags="-w -B 0x$machine" -timeout 45m "$@" | tee -a "$output"
}
# Many tests wait for clocks: three packages run at once on two processors. Those of test/e2e/kube wait for a node and begin first, so that
# they are not alone at the end; test/e2e keeps two processors busy by itself.
module=$(go list -m)
mapfile -t own < <(go list ./... | grep -v "^$module/test/")
mapfile -t others < <(go list ./test/... | grep -vx -e "$module/test/e2e" -e "$module/test/e2e/kube")
output=$(mktemp)
trap 'rm -f "$output"' EXIT
failed=0
run_tests -p "$(($(nproc) * 3 / 2))" "$@" ./test/e2e/kube "${own[@]}" || failed=1
run_tests "$@" ./test/e2e || failed=1
run_tests -p "$(nproc)" "$@" ./test/e2e/{cells,local} "${others[@]}" || failed=1
if ((failed)); then
	say 'failed:' # once more, below what the tests said
	grep -E '^(FAIL\s|panic:| *--- FAIL)' "$output"
	exit 1
fi
# Not beside the tests. With the flags with which `make build` has compiled what it imports.
CGO_ENABLED=0 go run -trimpath -buildvcs=false -gcflags=all=-dwarf=false ./bench --gate

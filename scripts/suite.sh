#!/usr/bin/env bash
# Builds what is tested and runs the tests. Called by scripts/test.sh, which has installed what they need, in its copy of the working tree.
# Usage: scripts/suite.sh test|test-all [FLAG of go test...]
set -euo pipefail
shopt -s inherit_errexit # a failure inside $(...) counts too
cd "$(dirname "$0")/.."

command=$1
shift

say() { printf 'test: %s\n' "$*"; }

cache=${SANDBOX_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sandbox}
output=$(mktemp)
trap 'rm -f "$output" "$output".*' EXIT
failed=0

# facts prints what the results depend on besides this tree: the kernel, what is installed, and what the images are made of that hold no program
# of ours. Packages of npm are those of lock files, which are inputs of the tests that use them.
facts() {
	uname -srm
	dpkg-query --show 2>/dev/null || true
	crun --version
	node --version
	if [[ $command == test ]]; then
		cat "$cache"/archives/{busybox,base,python,host}.recipe
		return
	fi
	runc --version
	docker version
	docker info --format "{{.Driver}} {{.CgroupVersion}} {{.DefaultRuntime}}"
	local name
	for name in busybox base python code-interpreter; do
		docker image inspect --format '{{.Id}}' "sandbox/$name:dev"
	done
	ls --ignore "npm-*" "$cache" "$cache/kube"
}

# limit is how long a package may take: twice what the slowest one needs with nothing beside it.
limit=20m

# go_test TIME FLAG...: no package may take longer than TIME. The packages are vetted, and a test needs no symbols for a debugger, which take
# long to compile and link. The machine is a note in the programs of the tests, so that the results of another one are not repeated.
go_test() { go test -vet=off -gcflags=all=-dwarf=false -ldflags="-w -B 0x$machine" -timeout "$@"; }

# quick runs what needs neither a Docker Engine nor a cluster: an engine of this machine stays unused, so that a test that needs one fails here
# wherever it runs. Many tests wait for clocks: three packages run at once on two processors. What takes longest begins.
quick() {
	local packages module
	module=$(go list -m)
	mapfile -t packages < <({ scripts/packages.sh local && scripts/packages.sh unit; } | longest_first)
	begin=(CGO_ENABLED=0 go test)
	without_engine -p "$(($(nproc) * 3 / 2))" "$@" "${packages[@]}" | tee -a "$output" || failed=1
	mapfile -t packages < <(scripts/packages.sh alone)
	without_engine -p 1 "$@" "${packages[@]}" | tee -a "$output" || failed=1
}

# longest_first prints the packages of its input in another order: those that take more than half a minute with others beside them, longest first,
# and then the rest.
longest_first() {
	awk -v module="$module" -v names="test/e2e/clients runtime/oci test/e2e/local deploy runtime/jupyter execd/api test/e2e/goclient server/host \
		runtime/oci/network execd/command openapi/serve runtime/oci/keeper test/bodies runtime/oci/images" '
		BEGIN { count = split(names, name, " ") }
		{ rest[NR] = $0; there[$0] = 1 }
		END {
			for (i = 1; i <= count; i++) if (module "/" name[i] in there) { print module "/" name[i]; delete there[module "/" name[i]] }
			for (i = 1; i <= NR; i++) if (rest[i] in there) print rest[i]
		}'
}

# without_engine FLAG...: without a Docker Engine, and without the race detector.
without_engine() { DOCKER_HOST=unix:///dev/null without_race "$limit" -skip "$(scripts/packages.sh --skip)" "$@"; }

# without_race TIME FLAG...: with the flags with which `make build` has compiled what the tests import.
without_race() { CGO_ENABLED=0 go_test "$1" -trimpath "${@:2}"; }

# with_race TIME FLAG...: with the race detector.
with_race() { CGO_ENABLED=1 go_test "$1" -race "${@:2}"; }

# all runs every test. Everything is compiled before, which keeps all processors busy. The race detector sees nothing of programs that are
# processes of their own, which is what deploy, test/e2e and what is below it test, but for the Go client: those run without it, and make test has
# the results of deploy and of the clients, of which it skips nothing. test/e2e/kube waits for nodes, pods and leases whose terms are those of
# Kubernetes and takes 16 to 21 minutes beside other packages: it has a longer limit than the others, and begins first. The other packages with a
# cluster follow it, and then what keeps two processors busy by itself, or takes long with many neighbours.
all() {
	local module packages cluster alone first kube gvisor='^TestGVisor$'
	export TEST_LONG=1 # what reads it goes on for longer than in make test, see test/random
	module=$(go list -m)
	mapfile -t packages < <(scripts/packages.sh --all)
	CGO_ENABLED=1 go list -race -export -test -gcflags=all=-dwarf=false "${packages[@]}" >/dev/null
	mapfile -t cluster < <(scripts/packages.sh cluster | grep -vx "$module/test/e2e/kube")
	mapfile -t alone < <(scripts/packages.sh alone)
	mapfile -t first < <(go list "${packages[@]}" | grep -vxF -f <(printf '%s\n' "${cluster[@]}" "${alone[@]}" \
		"$module"/{deploy,execd/api,runtime/jupyter,test/e2e,test/e2e/{browser,cells,clients,goclient,kube,local}}))
	begin=(CGO_ENABLED=1 go test -race)
	without_race 35m "$@" ./test/e2e/kube >"$output.kube" 2>&1 &
	kube=$!
	with_race "$limit" -p "$(nproc)" -skip "$gvisor" "$@" "${first[@]}" | tee -a "$output" || failed=1
	wait "$kube" || failed=1
	tee -a "$output" <"$output.kube"
	with_race "$limit" -p "$(nproc)" "$@" "${cluster[@]}" | tee -a "$output" || failed=1
	without_race "$limit" "$@" ./test/e2e | tee -a "$output" || failed=1
	with_race "$limit" -p "$(nproc)" "$@" ./runtime/jupyter ./execd/api ./test/e2e/goclient | tee -a "$output" || failed=1
	without_race "$limit" -p "$(nproc)" -skip "$gvisor" "$@" ./test/e2e/{browser,cells,local} | tee -a "$output" || failed=1
	# The only ones that need runsc: with it in PATH, all tests of the engine would run once more.
	PATH="$(scripts/gvisor.sh --build):$PATH" without_race "$limit" -run "$gvisor" "$@" ./runtime/oci | tee -a "$output" || failed=1
	PATH="$(scripts/gvisor.sh --build):$PATH" without_race "$limit" -run "$gvisor" "$@" ./test/e2e/local -runtime runsc | tee -a "$output" || failed=1
	machine=$(command=test; facts | sha256sum | cut -c1-16)
	without_engine "$@" -run '^TestPythonClient$/^a?synchronous$|^TestTypeScriptClient$/^live$/^cuts$' ./test/e2e/clients | tee -a "$output" || failed=1
	unset TEST_LONG # the results of make test
	without_engine -p "$(nproc)" "$@" ./deploy ./test/e2e/clients | tee -a "$output" || failed=1
	without_engine -p 1 "$@" "${alone[@]}" | tee -a "$output" || failed=1
}

if [[ $command == test ]]; then
	make --no-print-directory build
	scripts/images.sh --archives execd egress busybox base python host
	machine=$(facts | sha256sum | cut -c1-16)
	quick "$@"
else
	make --no-print-directory images
	# The one mostly waits for packages, while the other compiles.
	xargs -d '\n' -P 2 -I {} bash -ec '{}' <<-JOBS
		scripts/images.sh server controller ingress python code-interpreter && scripts/images.sh --archives execd egress busybox base python host code-interpreter
		test/cluster/build.sh && scripts/gvisor.sh --build >/dev/null
	JOBS
	machine=$(facts | sha256sum | cut -c1-16)
	all "$@"
fi
if ((failed)); then
	say 'failed; to run what failed alone:' # below what the tests said
	CGO_ENABLED=0 go run -trimpath -buildvcs=false -gcflags=all=-dwarf=false ./test/failed "${begin[@]}" <"$output"
	exit 1
fi
# Not beside the tests. With the flags with which `make build` has compiled what it imports.
if [[ $command == test-all ]]; then
	CGO_ENABLED=0 go run -trimpath -buildvcs=false -gcflags=all=-dwarf=false ./bench --gate
fi

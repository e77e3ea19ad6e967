#!/usr/bin/env bash
# Installs what the tests need, looks at the code, and runs every test, with the race detector. Called by `make test`.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'test: %s\n' "$*"; }

# install_missing installs what the tests need: the race detector a C compiler; the examples of the documentation, which are run, curl and jq.
# The local engine is tested with crun and with runc, which is part of what scripts/engine.sh installs, on file systems made of a static busybox;
# its page types nft.
install_missing() {
	local missing=() tool
	command -v gcc >/dev/null || missing+=(gcc libc6-dev)
	for tool in curl jq crun runc; do
		command -v "$tool" >/dev/null || missing+=("$tool")
	done
	command -v ip >/dev/null || missing+=(iproute2)
	command -v nft >/dev/null || missing+=(nftables)
	if [[ ! -x /bin/busybox ]] || ldd /bin/busybox >/dev/null 2>&1; then missing+=(busybox-static); fi
	((${#missing[@]} > 0)) || return 0
	if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
		printf 'test: missing: %s (install them)\n' "${missing[*]}" >&2
		return 1
	fi
	say "installing ${missing[*]}"
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 "${missing[@]}" >/dev/null
}

# install waits for the network most of the time.
install() {
	scripts/engine.sh
	install_missing
	scripts/kernels.sh
	scripts/browser.sh
	scripts/node.sh sdk/typescript
	scripts/node.sh test/e2e/clients/python
	scripts/node.sh test/e2e/clients/opensandbox
	scripts/node.sh server/console/web
	scripts/python.sh
}

(install) &
installing=$!
make --no-print-directory lint || { wait "$installing" || true; exit 1; }
wait "$installing"
make --no-print-directory images
# The one mostly waits for packages, while the other compiles.
xargs -d '\n' -P 2 -I {} bash -ec '{}' <<-JOBS
	scripts/images.sh server controller ingress python code-interpreter && scripts/images.sh --archives execd egress busybox base python code-interpreter
	test/cluster/build.sh
JOBS

if [[ $EUID -ne 0 ]]; then
	say "some tests mount file systems and make namespaces: they need root"
fi
scripts/fuzz.sh
# `make lint` has vetted the packages, and a test needs no symbols for a debugger, which take long to compile and link. Not
# with -trimpath: Go would repeat the results of another clone, whose files a test has opened by their paths, without a look at them here.
run_tests() {
	CGO_ENABLED=1 go test -race -vet=off -gcflags=all=-dwarf=false -ldflags=-w -timeout 45m "$@" | tee -a "$output"
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

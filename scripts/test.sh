#!/usr/bin/env bash
# Installs what the tests need, looks at the code, and runs every test in a copy of the working tree, with the race detector. Usage: scripts/test.sh
# [FLAG of go test...]. Called by `make test`.
#
# The copy is at the same path for every clone, so that the go command repeats results of packages whose inputs are the same, whoever has tested
# them here; -count=1 repeats none.
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
	scripts/node.sh clients/typescript
	scripts/node.sh test/e2e/clients/python
	scripts/node.sh test/e2e/clients/opensandbox
	scripts/node.sh server/console/web
	scripts/python.sh
}

(install) &
installing=$!
make --no-print-directory lint || { wait "$installing" || true; exit 1; }
wait "$installing"
scripts/fuzz.sh # here, and not in the copy: an input that fails is to be committed

if [[ $EUID -ne 0 ]]; then
	say "some tests mount file systems and make namespaces: they need root"
fi
cache=${SANDBOX_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sandbox}
mkdir -p "$cache"
SANDBOX_CACHE=$(cd "$cache" && pwd) # also from the copy
export SANDBOX_CACHE
copy=$SANDBOX_CACHE/tree
# The lock ends with this command, whatever the tests leave behind. They also share the images' names with those of another clone.
flock --nonblock "$copy.lock" true || say "tests of another clone are running: waiting for their end"
# With the flags with which `make lint` has compiled what it imports.
exec flock --close "$copy.lock" bash -ec '
	CGO_ENABLED=0 go run -trimpath -buildvcs=false -gcflags=all=-dwarf=false ./test/snapshot "$1"
	cd "$1"
	exec scripts/suite.sh "${@:2}"
' test "$copy" "$@"

#!/usr/bin/env bash
# Installs what the tests need, looks at the code, and runs the tests in a copy of the working tree. Usage: scripts/test.sh [--all]
# [FLAG of go test...]. Called by `make test`, and with --all by `make test-all`: scripts/packages.sh says which packages each of them runs.
#
# The copy is at the same path for every clone, so that the go command repeats results of packages whose inputs are the same, whoever has tested
# them here; -count=1 repeats none.
set -euo pipefail
cd "$(dirname "$0")/.."

command=test
if [[ ${1:-} == --all ]]; then
	command=test-all
	shift
fi
cache=${SANDBOX_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sandbox}
mkdir -p "$cache/times"
SANDBOX_CACHE=$(cd "$cache" && pwd) # also from the copy
export SANDBOX_CACHE

say() { printf 'test: %s\n' "$*"; }

# announce says what will be done, and how long it took the last time on this machine.
announce() {
	if [[ $command == test ]]; then
		say "make test: gofmt, vet, and the tests of the packages, the local engine with crun, the command line, the Go, Python and TypeScript" \
			"clients, and Python kernels. It uses no Docker Engine and no cluster."
	else
		say "make test-all: staticcheck, fuzz tests, and every test: also Docker, runc, gVisor, every kernel, a Kubernetes and a browser, with the" \
			"race detector what runs in the process of its test; at last, alone, the performance gate."
	fi
	say "the last time here: $(cat "$SANDBOX_CACHE/times/$command" 2>/dev/null || echo "none")"
}

# record keeps how long it took.
record() {
	local status=$? result=passed
	trap '' TERM INT # make sends another
	((status == 0)) || result=failed
	printf '%s after %d min %d s, on %s, with %s\n' "$result" $((SECONDS / 60)) $((SECONDS % 60)) "$(date -u +%F)" "${flags:-no flags}" \
		>"$SANDBOX_CACHE/times/$command"
	say "make $command: $(<"$SANDBOX_CACHE/times/$command")"
	exit "$status"
}

# install_missing installs what the tests need: the race detector a C compiler; the examples of the documentation, which are run, curl and jq;
# the SSH server of the command line an OpenSSH client.
# The local engine is tested with crun, on file systems made of a static busybox; its page types nft, and tests of its network make
# the rules of other firewalls with iptables. With --all it is tested with runc, too,
# which is part of what scripts/engine.sh installs.
install_missing() {
	local missing=() tool tools=(curl jq crun)
	if [[ $command == test-all ]]; then
		command -v gcc >/dev/null || missing+=(gcc libc6-dev)
		tools+=(runc)
	fi
	for tool in "${tools[@]}"; do
		command -v "$tool" >/dev/null || missing+=("$tool")
	done
	command -v ip >/dev/null || missing+=(iproute2)
	command -v sftp >/dev/null || missing+=(openssh-client)
	command -v nft >/dev/null || missing+=(nftables)
	command -v iptables >/dev/null || missing+=(iptables)
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
	[[ $command == test ]] || scripts/engine.sh
	install_missing
	scripts/kernels.sh
	scripts/node.sh clients/typescript
	scripts/node.sh test/e2e/clients/python
	scripts/node.sh test/e2e/clients/opensandbox
	scripts/node.sh test/e2e/clients/e2b
	scripts/node.sh test/e2e/clients/adapters
	scripts/node.sh deploy/testdata/node
	scripts/python.sh
	[[ $command == test-all ]] || return 0
	scripts/browser.sh
	scripts/nbformat.sh
	scripts/reverse_proxies.sh
	scripts/node.sh server/console/web
}

# forget_environment leaves of the environment what says where things are and how the network is reached. Variables that a test looks at are
# inputs of its result: with those of a terminal, of a shell or of another PATH, results would not be repeated, or not be the same.
forget_environment() {
	local name node
	for name in $(compgen -e); do
		case ${name^^} in
		HOME | TMPDIR | XDG_CACHE_HOME | SANDBOX_* | TEST_* | GO* | CGO_* | DOCKER_* | *_PROXY | SSL_CERT_* | *_CA_BUNDLE | \
			NODE_EXTRA_CA_CERTS | NPM_CONFIG_* | PATH) ;;
		*) unset "$name" ;;
		esac
	done
	node=$(command -v node)
	PATH=$(go env GOROOT)/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
	[[ :$PATH: == *:${node%/*}:* ]] || PATH=$PATH:${node%/*}
	export PATH LANG=C.UTF-8
}

flags=$*
announce
trap record EXIT
trap 'exit 143' TERM # recorded as a failure
trap 'exit 130' INT
(install) &
installing=$!
look=vet
[[ $command == test ]] || look=lint
make --no-print-directory "$look" || { wait "$installing" || true; exit 1; }
wait "$installing"
if [[ $command == test-all ]]; then
	scripts/fuzz.sh # here, and not in the copy: an input that fails is to be committed
fi
if [[ $EUID -ne 0 ]]; then
	say "some tests mount file systems and make namespaces: they need root"
fi
forget_environment
copy=$SANDBOX_CACHE/tree
# The lock ends with this command, whatever the tests leave behind. They also share the images' names with those of another clone.
flock --nonblock "$copy.lock" true || say "tests of another clone are running: waiting for their end"
# With the flags with which `make vet` has compiled what it imports.
flock --close "$copy.lock" bash -ec '
	CGO_ENABLED=0 go run -trimpath -buildvcs=false -gcflags=all=-dwarf=false ./test/snapshot "$1"
	cd "$1"
	exec scripts/suite.sh "${@:2}"
' test "$copy" "$command" "$@"

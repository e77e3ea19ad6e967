#!/usr/bin/env bash
# Makes sure that the tests of runtime/jupyter find a Jupyter Server and a Python kernel, and says what it did.
# As root on Debian it installs them. Safe to call again and by several at once.
set -euo pipefail

packages=(jupyter-server python3-jupyter-server python3-ipykernel)

say() { printf 'kernels: %s\n' "$*"; }
die() { printf 'kernels: %s\n' "$@" >&2; exit 1; }

# The server's own Python must have the kernel, too. Finding modules costs a tenth of importing them.
complete() {
	local server python
	server=$(command -v jupyter-server) || return
	python=$(sed -n '1s/^#! *//p' "$server")
	# shellcheck disable=SC2086 # it may be "/usr/bin/env python3"
	$python -c 'import importlib.util as i, sys; sys.exit(not all(map(i.find_spec, ("jupyter_server", "ipykernel"))))' 2>/dev/null
}

if complete; then
	say "jupyter-server and ipykernel are here"
	exit 0
fi

if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
	die "jupyter-server or ipykernel is missing" \
		"install them: pip install jupyter-server ipykernel, so that jupyter-server is in PATH;" \
		"or run this as root on Debian, which installs ${packages[*]}"
fi

exec 9>/run/lock/sandbox-kernels.lock
flock 9
if complete; then exit 0; fi # another run has just installed them

say "installing ${packages[*]}"
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	-o DPkg::Lock::Timeout=300 "${packages[@]}" >/dev/null
complete || die "installed, but jupyter-server or ipykernel still cannot be found"

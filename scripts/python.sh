#!/usr/bin/env bash
# Makes sure that Python and what builds the package of the Python client are here, and prints the interpreter's path as the last line.
# As root on Debian it installs them. Safe to call again and by several at once.
set -euo pipefail
shopt -s inherit_errexit # a failure inside $(...) counts too

say() { printf 'python: %s\n' "$*"; }
die() { printf 'python: %s\n' "$@" >&2; exit 1; }

# found prints the first interpreter that is new enough and has what builds packages.
found() {
	local python
	for python in python3 /usr/bin/python3; do
		if "$python" -c 'import sys, setuptools, wheel; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
			"$python" -c 'import sys; print(sys.executable)'
			return
		fi
	done
	return 1
}

if ! python=$(found); then
	if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
		die "no Python 3.11 or newer with setuptools and wheel" "install it, or run this as root on Debian, which installs it"
	fi
	say "installing python3, python3-setuptools and python3-wheel"
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 \
		python3 python3-setuptools python3-wheel >/dev/null
	python=$(found) || die "installed, but Python 3.11 or newer with setuptools and wheel still cannot be found"
fi
say "$("$python" --version) is here"
printf '%s\n' "$python"

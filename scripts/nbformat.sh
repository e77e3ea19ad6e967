#!/usr/bin/env bash
# Makes sure that a Python with nbformat, which reads and checks notebooks, is here, and prints its
# path as the last line. As root on Debian it installs them. Safe to call again and by several at once.
set -euo pipefail
shopt -s inherit_errexit # a failure inside $(...) counts too

say() { printf 'nbformat: %s\n' "$*"; }
die() { printf 'nbformat: %s\n' "$@" >&2; exit 1; }

# found prints the first interpreter that has it.
found() {
	local python
	for python in python3 /usr/bin/python3; do
		if "$python" -c 'import nbformat' 2>/dev/null; then
			"$python" -c 'import sys; print(sys.executable)'
			return
		fi
	done
	return 1
}

if ! python=$(found); then
	if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
		die "no Python with nbformat" "install it, or run this as root on Debian, which installs it"
	fi
	say "installing python3-nbformat"
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
		-o DPkg::Lock::Timeout=300 python3-nbformat >/dev/null
	python=$(found) || die "installed, but Python with nbformat still cannot be found"
fi
printf '%s\n' "$python"

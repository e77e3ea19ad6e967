#!/usr/bin/env bash
# Makes sure that the tests of /docs and /redoc find a browser, and says what it did.
# As root on Debian it installs Chromium. Safe to call again and by several at once.
set -euo pipefail

say() { printf 'browser: %s\n' "$*"; }
die() { printf 'browser: %s\n' "$@" >&2; exit 1; }

# The names under which the tests look for it.
complete() {
	local name
	for name in chromium chromium-browser google-chrome; do
		if command -v "$name" >/dev/null; then
			say "$name is here"
			return
		fi
	done
	return 1
}

if complete; then exit 0; fi

if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
	die "no Chromium or Chrome in PATH" "install one, or run this as root on Debian, which installs chromium"
fi

exec 9>/run/lock/sandbox-browser.lock
flock 9
if complete; then exit 0; fi # another run has just installed it

say "installing chromium"
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 chromium >/dev/null
complete || die "installed, but chromium still cannot be found"

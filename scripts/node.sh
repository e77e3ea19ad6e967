#!/usr/bin/env bash
# Makes sure that Node.js and the packages of FOLDER/package-lock.json are here, and prints the folder with these packages as the last line.
# As root on Debian it installs Node.js. Usage: scripts/node.sh FOLDER, as seen from the root of the repository. The packages are kept in
# $SANDBOX_CACHE. Safe to call again and by several at once.
set -euo pipefail
shopt -s inherit_errexit # a failure inside $(...) counts too
cd "$(dirname "$0")/.."

source=${1:?usage: scripts/node.sh FOLDER}
name=npm-${source//\//-}
cache=${SANDBOX_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sandbox}
oldest=20 # what the clients support

say() { printf 'node: %s\n' "$*"; }
die() { printf 'node: %s\n' "$@" >&2; exit 1; }

complete() {
	command -v npm >/dev/null && [[ $(node -p 'process.versions.node.split(".")[0]' 2>/dev/null || echo 0) -ge $oldest ]]
}

install_node() {
	if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
		die "no Node.js $oldest or newer with npm in PATH" "install it, or run this as root on Debian, which installs it"
	fi
	if ! command -v npm >/dev/null; then
		say "installing nodejs and npm"
		apt-get update -qq
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 nodejs npm >/dev/null
	fi
	if ! complete; then # Debian 12 has Node.js 18
		say "installing Node.js 22 from npm"
		npm install --global --no-audit --no-fund --loglevel=error node@22 >&2
		hash -r
	fi
	complete || die "installed, but node $oldest or npm still cannot be found"
}

[[ -r $source/package-lock.json ]] || die "$source has no package-lock.json"
mkdir -p "$cache"
exec 9>"$cache/node.lock"
flock 9
complete || install_node

packages=$cache/$name-$(cat "$source/package.json" "$source/package-lock.json" | sha256sum | cut -c1-16)
if [[ ! -d $packages ]]; then
	say "installing the packages of $source"
	rm -rf "$cache/$name"-* # older ones, and what was left half done
	work=$packages.partial
	mkdir "$work"
	cp "$source/package.json" "$source/package-lock.json" "$work"
	(cd "$work" && npm ci --no-audit --no-fund --loglevel=error >&2)
	mv "$work" "$packages" # complete, or not there
fi
say "node $(node --version) and the packages of $source are here"
printf '%s\n' "$packages"

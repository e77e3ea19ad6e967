#!/usr/bin/env bash
# Makes sure that the programs of two reverse proxies are in ~/.cache/sandbox/reverse-proxies, for the test of docs/operate.md: nginx and caddy.
# They are taken out of Debian's packages and not installed, because an installation starts them on the ports 80 and 443.
set -euo pipefail

say() { printf 'reverse proxies: %s\n' "$*"; }
die() { printf 'reverse proxies: %s\n' "$@" >&2; exit 1; }

cache=${SANDBOX_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sandbox}
programs=$cache/reverse-proxies

complete() { [[ -x $programs/usr/sbin/nginx && -x $programs/usr/bin/caddy ]]; }

if complete; then exit 0; fi
if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
	die "$programs has no usr/sbin/nginx and usr/bin/caddy" "put them there, or run this as root on Debian"
fi
mkdir -p "$cache"
exec 9>"$programs.lock"
flock 9
if complete; then exit 0; fi # another run has just made it

say "downloading nginx and caddy"
new=$(mktemp -d "$programs.XXXXXX")
trap 'rm -rf "$new"' EXIT
chmod 0755 "$new" # apt downloads as another user
apt-get update -qq
(cd "$new" && apt-get -o APT::Sandbox::User=root download -qq nginx caddy)
for package in "$new"/*.deb; do
	dpkg-deb --extract "$package" "$new/root"
done
rm -rf "$programs"
mv "$new/root" "$programs"
complete || die "Debian's packages have no usr/sbin/nginx or usr/bin/caddy any more"

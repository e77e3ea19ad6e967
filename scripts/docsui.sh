#!/usr/bin/env bash
# Fetches the browser parts of /docs and /redoc into server/docsui/assets, where they are committed and embedded. Needs npm and the network;
# nothing else does: a build and the running service work offline. Versions and digests are pinned here. Same input, same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."

assets=server/docsui/assets
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

die() { printf 'docsui: %s\n' "$@" >&2; exit 1; }

# fetch PACKAGE VERSION SHA256: unpacks the package into $work/PACKAGE.
fetch() {
	local archive=$work/$1-$2.tgz
	(cd "$work" && npm pack --silent "$1@$2" >/dev/null)
	echo "$3  $archive" | sha256sum --check --quiet || die "$1 $2 is not what it was when it was pinned"
	mkdir "$work/$1"
	tar -xzf "$archive" -C "$work/$1" --strip-components=1
}

# pack FILE: the same bytes whoever runs this, and whenever.
pack() { gzip --best --no-name --stdout "$1" >"$assets/$(basename "$1").gz"; }

command -v npm >/dev/null || die "npm is missing (Debian: apt-get install npm)"
fetch swagger-ui-dist 5.35.0 1b8e891893404ea4c3558b6a87e2a3e494e7eedba41168c2ece5800a391a6ea6
fetch redoc 2.5.4 44922df4d0eb45c1b066c09ec251e6bd9bd7ded16bc69e87613337b9d911a56e

rm -rf "$assets"
mkdir "$assets"
swagger=$work/swagger-ui-dist redoc=$work/redoc/bundles
pack "$swagger/swagger-ui-bundle.js"
pack "$swagger/swagger-ui.css"
cp "$swagger/LICENSE" "$assets/swagger-ui.LICENSE.txt"
cp "$swagger/NOTICE" "$assets/swagger-ui.NOTICE.txt"
cp "$swagger/swagger-ui-bundle.js.LICENSE.txt" "$assets/"

# ReDoc shows a logo from its maker's server. Our pages ask only their own service, so the logo becomes an empty picture.
logo=https://cdn.redoc.ly/redoc/logo-mini.svg
[[ $(grep -o "$logo" "$redoc/redoc.standalone.js" | wc -l) == 1 ]] || die "redoc.standalone.js names $logo not once"
sed -i "s|$logo|data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg'/>|" "$redoc/redoc.standalone.js"
pack "$redoc/redoc.standalone.js"
cp "$work/redoc/LICENSE" "$assets/redoc.LICENSE.txt"
cp "$redoc/redoc.standalone.js.LICENSE.txt" "$assets/"
chmod 0644 "$assets"/*
du -sh "$assets"

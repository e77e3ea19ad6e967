#!/usr/bin/env bash
# Bundles the web console from server/console/web into server/console/assets, where it is committed and embedded. Needs Node.js with npm,
# and the registry the first time; a build of the service needs neither. Same sources, same bytes: the versions of the bundler and of
# what it bundles are those of the lock file.
set -euo pipefail
shopt -s inherit_errexit # a failure inside $(...) counts too
cd "$(dirname "$0")/.."

web=server/console/web
assets=server/console/assets
packages=$(scripts/node.sh "$web" | tail -n 1)/node_modules
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cp -r "$web/src" "$web/console.css" "$work"
ln -s "$packages" "$work/node_modules"
# bundle FILE...: names in messages are relative, so that they do not depend on the machine.
bundle() {
	(cd "$work" && node_modules/.bin/esbuild "$@" --bundle --minify --format=esm --target=es2022 --charset=utf8 --legal-comments=none \
		--log-level=warning --outdir=out)
}
bundle src/main.js --entry-names=console --external:./terminal.js
bundle src/terminal.js --entry-names=terminal
bundle console.css --entry-names=console

rm -rf "$assets"
mkdir "$assets"
for file in console.js console.css terminal.js; do
	gzip --best --no-name --stdout "$work/out/$file" >"$assets/$file.gz"
done
cp "$web/icon.svg" "$assets/icon.svg"
for package in @xterm/addon-fit @xterm/xterm htm preact; do
	printf '%s %s\n\n' "$package" "$(node -p 'require(process.argv[1]).version' "$packages/$package/package.json")"
	cat "$packages/$package/LICENSE"
	printf '\n\n'
done >"$assets/licenses.txt"
chmod 0644 "$assets"/*

#!/usr/bin/env bash
# Makes the packages of clients: the wheel of the Python client, the package of the TypeScript client for npm, and an archive of the Go client
# and the module that it needs, as a folder that a web server can serve as a GOPROXY. Called by scripts/dist.sh.
# Usage: scripts/clients.sh VERSION SECONDS FOLDER python|typescript|go...
# VERSION is one that the Go tool stamps, and SECONDS since 1970 its time. The same sources and arguments make the same bytes.
set -euo pipefail
shopt -s inherit_errexit
umask 022
export LC_ALL=C TZ=UTC GOWORK=off CGO_ENABLED=0

version=$1 seconds=$2
folder=$(cd "$3" && pwd)
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { printf 'dist: %s\n' "$*"; }
die() { printf 'dist: %s\n' "$*" >&2; exit 1; }

package_python() {
	local python number
	python=$(scripts/python.sh | tail -n 1)
	number=$(scripts/pythonversion.sh "$version")
	cp -R clients/python "$work/python"
	cp LICENSE "$work/python/"
	sed -i "s/^version = .*/version = \"$number\"/" "$work/python/pyproject.toml"
	(cd "$work/python" && SOURCE_DATE_EPOCH=$seconds "$python" -c \
		'import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])' "$folder" >"$work/wheel.log" 2>&1) ||
		{ cat "$work/wheel.log" >&2; die "the package of the Python client was not built"; }
	[[ -f $folder/sandboxes-$number-py3-none-any.whl ]] || die "the package of the Python client has not the version $number"
	say "sandboxes-$number-py3-none-any.whl"
}

# package_typescript: both schemes of versions are semantic.
package_typescript() {
	local node packed
	node=$(scripts/node.sh clients/typescript | tail -n 1)
	cp -R clients/typescript "$work/typescript"
	rm -rf "$work/typescript/node_modules"
	cp LICENSE "$work/typescript/"
	ln -s "$node/node_modules" "$work/typescript/node_modules"
	packed=$(cd "$work/typescript" && npm pkg set "version=${version#v}" && npm pack --silent --pack-destination "$folder") ||
		die "the package of the TypeScript client was not built"
	say "$packed"
}

package_go() {
	local name=sandbox-go_${version#v}
	GOOS='' GOARCH='' go run -trimpath ./deploy/release/modules -version "$version" -seconds "$seconds" -license LICENSE \
		-out "$work/$name" clients/go wire
	tar --directory="$work" --format=ustar --sort=name --mtime="@$seconds" --owner=0 --group=0 --numeric-owner --create "$name" |
		gzip --no-name --best >"$folder/$name.tar.gz"
	say "$name.tar.gz"
}

for client in "${@:4}"; do "package_$client"; done

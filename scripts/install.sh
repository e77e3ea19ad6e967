#!/usr/bin/env bash
# Installs what a host needs, or removes it again. Usage: scripts/install.sh install|uninstall. Called by `make install` and
# `make uninstall`. It makes the folder of a release from this tree, and has deploy/install.sh install that.
# PREFIX (/usr/local) is where the files are used, DESTDIR (empty) a folder that stands for / while a package is made.
# PROGRAMS is a folder with compiled programs; without it they are compiled, and their version is Git's.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

die() { printf 'install: %s\n' "$*" >&2; exit 1; }

for variable in PREFIX DESTDIR; do
	[[ -z ${!variable:-} || ${!variable} == /* ]] || die "$variable must be an absolute path, not \"${!variable}\""
done
flags=(--yes)
[[ -z ${PREFIX:-} ]] || flags+=(--prefix "$PREFIX")
[[ -z ${DESTDIR:-} ]] || flags+=(--destdir "$DESTDIR")
case ${1:-} in
install) ;;
uninstall) exec deploy/install.sh --uninstall "${flags[@]}" ;;
*) die "usage: scripts/install.sh install|uninstall" ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
programs=${PROGRAMS:-}
if [[ -z $programs ]]; then
	programs=$work/programs
	build() { CGO_ENABLED=0 go build -trimpath -buildvcs=auto -gcflags=all=-dwarf=false -ldflags '-s -w' -o "$programs/" "$@"; }
	build ./clients/cmd/sandbox ./server/cmd/...
	build -tags nethttpomithttp2 ./execd/cmd/... ./egress/cmd/... ./taskexecutor/cmd/...
fi
version=$(go version -m "$programs/sandbox" | awk '$1 == "mod" { print $3 }')
scripts/tree.sh "$programs" "$programs/sandbox" "$version" "$(go env GOARCH)" "$work/release"
"$work/release/install.sh" "${flags[@]}"

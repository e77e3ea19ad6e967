#!/usr/bin/env bash
# Makes a Debian or an RPM package of the folder of a release (scripts/tree.sh). Called by scripts/dist.sh.
# Usage: scripts/package.sh TREE VERSION ARCHITECTURE SECONDS FOLDER deb|rpm...
# SECONDS since 1970 is the time of all files. The same arguments make the same bytes.
set -euo pipefail
shopt -s inherit_errexit
umask 022

NFPM=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.43.4

tree=$(cd "$1" && pwd) seconds=$4
folder=$(cd "$5" && pwd)
export VERSION=$2 ARCHITECTURE=$3 SOURCE_DATE_EPOCH=$seconds LC_ALL=C TZ=UTC
cd "$(dirname "$0")/.."
# shellcheck source=deploy/release.env
. deploy/release.env
export RELEASE_HOMEPAGE RELEASE_MAINTAINER RELEASE_PACKAGE
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$tree/install.sh" --yes --prefix /usr --destdir "$work" >/dev/null
# The package manager has the list of files, and removes them.
rm "$work"/usr/share/sandbox/{installed,install.sh}
cp -R deploy/package "$work/package"
find "$work" -exec touch --date="@$seconds" {} +
cd "$work"
for format in "${@:6}"; do
	GOOS='' GOARCH='' GOFLAGS=-trimpath CGO_ENABLED=0 go run "$NFPM" package --config package/nfpm.yaml --packager "$format" --target "$folder" >/dev/null
done

#!/usr/bin/env bash
# Makes the archives of a release in dist/: for Linux what scripts/tree.sh makes, programs, images and install.sh; for macOS and Windows the
# command line tool alone, with LICENSE and README.md; for Linux also a package for Debian and one for RPM, and what the programs are made of, as
# CycloneDX JSON; the packages of the Python, the TypeScript and the Go client; and SHA256SUMS over all. Called by `make dist`.
# MINISIGN_KEY is a file with a secret key of minisign, without a password: with it SHA256SUMS.minisig has the signature of SHA256SUMS.
# deploy/release.env has what depends on the project's public home.
# What is compiled is a clone of the commit HEAD: the Go tool stamps no worktree, and changes that are not committed are no release.
# The version is what the Go tool stamps: the tag of the commit, else a pseudo-version. The same commit and the same Go make the same bytes.
# PLATFORMS is what to make, e.g. "linux/amd64 windows/arm64 python typescript go"; by default everything.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

read -ra platforms <<<"${PLATFORMS:-linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64 python typescript go}"

say() { printf 'dist: %s\n' "$*"; }
die() { printf 'dist: %s\n' "$*" >&2; exit 1; }

[[ -z ${MINISIGN_KEY:-} || -r $MINISIGN_KEY ]] || die "MINISIGN_KEY: cannot read $MINISIGN_KEY"

# build [FLAG...] PACKAGE...: compiles programs for the platform.
build() {
	GOOS=$os GOARCH=$arch go -C "$work/source" build -trimpath -buildvcs=true -gcflags=all=-dwarf=false -ldflags '-s -w' \
		-o "$work/programs/" "$@"
}

for platform in "${platforms[@]}"; do
	case $platform in
	linux/amd64 | linux/arm64 | darwin/amd64 | darwin/arm64) ;;
	windows/amd64 | windows/arm64) command -v zip >/dev/null || die "zip is missing: install it" ;;
	python) scripts/python.sh >/dev/null ;;
	typescript) scripts/node.sh clients/typescript >/dev/null ;;
	go) ;;
	*) die "PLATFORMS: no platform $platform: linux, darwin or windows, /amd64 or /arm64; or python, typescript or go" ;;
	esac
done

# Nothing of the caller's environment may change the bytes.
unset GOFLAGS GOAMD64 GOARM64 GOEXPERIMENT GZIP ZIPOPT
export CGO_ENABLED=0 GOWORK=off TZ=UTC LC_ALL=C
umask 022
committed=$(git show --no-patch --format=%ct HEAD)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/dist"
git clone --quiet --shared . "$work/source"

# What the Go tool stamps is the same in every program: here in the smallest.
go -C "$work/source" build -buildvcs=true -o "$work/stamped" ./clients/python/synchronous
version=$(go version -m "$work/stamped" | awk '$1 == "mod" { print $3 }')
[[ -n $version && $version != "(devel)" ]] || die "the Go tool stamped no version: is git there?"

# Programs for this machine: one writes its own manual, the other what programs are made of.
if [[ " ${platforms[*]}" == *" linux/"* ]]; then
	go -C "$work/source" build -trimpath -buildvcs=false -gcflags=all=-dwarf=false -ldflags '-s -w' -o "$work/tool" ./clients/cmd/sandbox
	go -C "$work/source" build -trimpath -buildvcs=false -gcflags=all=-dwarf=false -ldflags '-s -w' -o "$work/sbom" ./deploy/release/sbom
fi

for platform in "${platforms[@]}"; do
	if [[ $platform != */* ]]; then
		"$work/source/scripts/clients.sh" "$version" "$committed" "$work/dist" "$platform"
		continue
	fi
	os=${platform%/*} arch=${platform#*/}
	mkdir "$work/programs"
	if [[ $os == linux ]]; then
		build ./clients/cmd/sandbox ./server/cmd/...
		build -tags nethttpomithttp2 ./execd/cmd/... ./egress/cmd/... ./taskexecutor/cmd/...
	else
		build ./clients/cmd/sandbox
	fi
	programs=("$work"/programs/*)
	name=sandbox_${version#v}_${os}_$arch
	mkdir "$work/$name"
	if [[ $os == linux ]]; then
		"$work/source/scripts/tree.sh" "$work/programs" "$work/tool" "$version" "$arch" "$work/$name"
	else
		install -m 0755 "${programs[@]}" "$work/$name/"
		install -m 0644 "$work"/source/{LICENSE,README.md} "$work/$name/"
	fi
	find "$work/$name" -exec touch --date="@$committed" {} +
	if [[ $os == windows ]]; then
		(cd "$work" && find "$name" -type f | sort | zip --quiet -X -9 "dist/$name.zip" -@)
	else
		tar --directory="$work" --format=ustar --sort=name --mtime="@$committed" --owner=0 --group=0 --numeric-owner --create "$name" |
			gzip --no-name --best >"$work/dist/$name.tar.gz"
	fi
	if [[ $os == linux ]]; then
		"$work/sbom" -name sandbox -version "$version" -time "$committed" "${programs[@]}" >"$work/dist/$name.cdx.json"
		"$work/source/scripts/package.sh" "$work/$name" "$version" "$arch" "$committed" "$work/dist" deb rpm
	fi
	say "$name: ${#programs[@]} programs"
	rm -r "$work/programs" "${work:?}/$name"
done

(cd "$work/dist" && sha256sum -- * >SHA256SUMS)
if [[ -n ${MINISIGN_KEY:-} ]]; then
	scripts/sign.sh "$MINISIGN_KEY" "$work/dist/SHA256SUMS" "sandbox $version SHA256SUMS"
	say "SHA256SUMS.minisig"
fi
rm -rf dist
mv "$work/dist" dist
say "dist/ has the archives of commit $(git rev-parse --short HEAD), and SHA256SUMS"

#!/usr/bin/env bash
# Puts the images and the chart of the release in dist/ into a registry. Called by `make push`. Usage: scripts/push.sh [REGISTRY], which is what the
# names begin with, such as registry.example.org/sandbox; without it that of deploy/release.env. Credentials are those of `docker login`.
set -euo pipefail
cd "$(dirname "$0")/.."

die() { printf 'push: %s\n' "$*" >&2; exit 1; }

# shellcheck source=deploy/release.env
. deploy/release.env
registry=${1:-$RELEASE_REGISTRY}
[[ -n $registry ]] || die "no registry is given: make push REGISTRY=registry.example.org/sandbox, or RELEASE_REGISTRY in deploy/release.env"
shopt -s nullglob
archives=(dist/sandbox_*_linux_*.tar.gz)
((${#archives[@]} > 0)) || die "dist/ has no archive for Linux: make dist"
(cd dist && sha256sum --quiet --check SHA256SUMS) || die "dist/ is not what SHA256SUMS says: make dist"
exec go run ./deploy/release/push "$registry" "${archives[@]}"

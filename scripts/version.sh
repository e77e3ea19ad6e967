#!/usr/bin/env bash
# Prints the version and the commit of the programs that run outside of sandboxes, on one line: those of the newest commit that changed what
# they are made of, so that another commit, of tests or documentation, changes no program. The version is a tag of it, what git describe makes
# of an earlier tag, or, without any tag, a pseudo-version as the Go tool has it; "+dirty" follows where sources are changed and not committed.
# Prints nothing outside of a repository. Called by `make build`.
set -euo pipefail
cd "$(dirname "$0")/.."
sources=(go.mod go.sum clients/{cli,cmd,go,mcp} gen internal openapi runtime server ':(exclude)*_test.go' ':(exclude)*.md')

[[ $(git rev-parse --show-toplevel 2>/dev/null) == "$PWD" ]] || exit 0
commit=$(git log -1 --format=%H -- "${sources[@]}")
[[ -n $commit ]] || exit 0
version=$(git describe --tags --match 'v[0-9]*' --exact-match HEAD 2>/dev/null ||
	git describe --tags --match 'v[0-9]*' "$commit" 2>/dev/null ||
	TZ=UTC git show --no-patch --date=format-local:%Y%m%d%H%M%S --format="v0.0.0-%cd-${commit:0:12}" "$commit")
[[ -z $(git status --porcelain -- "${sources[@]}") ]] || version+=+dirty
printf '%s %s\n' "$version" "$commit"

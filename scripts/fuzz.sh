#!/usr/bin/env bash
# Runs every fuzz test of the repository with FUZZ_RUNS (4000) fresh inputs; usage: scripts/fuzz.sh [PATTERN of fuzz tests].
# What it learns is kept in $SANDBOX_CACHE/fuzz, so each run goes on where the last one stopped. An input that fails is
# written to testdata/fuzz of its package: commit it with the repair, and every test run holds it from then on.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'fuzz: %s\n' "$*"; }

runs=${FUZZ_RUNS:-4000}
corpus=${SANDBOX_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sandbox}/fuzz
programs=$(mktemp -d)
trap 'rm -rf "$programs"' EXIT

mapfile -t targets < <(grep -rEo --include='*_test.go' "^func Fuzz${1:-}[A-Za-z0-9_]*" . | sed -E 's|^\./(.*)/[^/]*:func (.*)$|\1 \2|' | sort -u)
((${#targets[@]} > 0)) || { say "no fuzz test matches ${1:-}" >&2; exit 1; }

# A program per package, built once, in its module; with -trimpath, so that nothing is compiled again for another clone.
for package in $(printf '%s\n' "${targets[@]}" | cut -d' ' -f1 | sort -u); do
	go -C "$package" test -c -trimpath -fuzz=Fuzz -vet=off -gcflags=all=-dwarf=false -ldflags=-w -o "$programs/${package//\//_}" .
done

# A number of inputs and not a time: when the time is over, package testing sometimes calls that a failure ("context deadline exceeded"),
# because its coordinator compares the error of one context with another that has not been cancelled yet.
say "${#targets[@]} fuzz tests, $runs inputs each"
failed=0
for target in "${targets[@]}"; do
	read -r package name <<<"$target"
	log=$programs/log
	if ! (cd "$package" && "$programs/${package//\//_}" -test.run='^$' -test.fuzz="^$name\$" -test.fuzztime="${runs}x" \
		-test.fuzzcachedir="$corpus/$package" -test.parallel=2 -test.fuzzminimizetime=1s) >"$log" 2>&1; then
		say "$package $name failed:"
		cat "$log"
		failed=1
		continue
	fi
	say "$package $name: $(sed -nE 's/.*elapsed: ([0-9a-z]+), execs: ([0-9]+).*total: ([0-9]+).*/\2 executions in \1, a corpus of \3/p' "$log" | tail -n 1)"
done
exit "$failed"

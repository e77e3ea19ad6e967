#!/usr/bin/env bash
# Prints the packages that have tests, each in the one class that says what its tests need. Usage:
# scripts/packages.sh [CLASS...]; without one it prints the class before each package.
#
#   unit     Go, root for some of them, and nothing else            make check
#   local    crun, our images as archives, Jupyter, Node.js, Python make test
#   alone    as local, and nothing that runs beside it              make test
#   docker   a Docker Engine, or an image that one has built        make test-all
#   browser  Chromium                                               make test-all
#   cluster  a Kubernetes                                           make test-all
#
# make test also runs what make check runs, and make test-all runs every package. What is alone runs
# with nothing beside it: its clients have deadlines that a shared machine would miss. --skip prints the
# tests of local packages that make test leaves to make test-all, as a pattern for go test. --all
# prints the patterns of every package of the three modules.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

module=sandbox.internal
# A package is of the first class of which it has one: a package that its tests import, or its own
# name, for what tests run outside of Go is seen in no import.
cluster="test/cluster"
docker="runtime/docker egress/app= taskexecutor= test/e2e/cells="
browser="test/e2e/browser="
alone="test/e2e/clients/burst="
local="runtime/engine/enginetest runtime/kernel/kerneltest test/e2e/conformance test/program deploy= execd/api="
# Docker's container beside ours; sandboxes with the other two OCI runtimes; what gVisor alone can.
# Alternatives with fewer elements come first: go test looks no further at one that matches in part.
skip='^TestLikeDocker$|^TestGVisor$|/^(runc|runsc)$'

# All of $module/... would have the go command warn of each symbolic link.
all=(./... "$module/clients/go/..." "$module/wire/...")

case ${1:-} in
--skip)
	printf '%s\n' "$skip"
	exit
	;;
--all)
	printf '%s\n' "${all[@]}"
	exit
	;;
esac
go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.TestImports}} {{.XTestImports}}{{end}}' "${all[@]}" |
	awk -v module="$module" -v cluster="$cluster" -v docker="$docker" -v browser="$browser" -v alone="$alone" \
		-v local="$local" -v wanted="$*" '
		# of: the list has a package that the tests of this line import, or, as NAME=, its own.
		function of(list, names, count, i, name) {
			count = split(list, names, " ")
			for (i = 1; i <= count; i++) {
				name = names[i]
				if (sub("=$", "", name) ? $1 == module "/" name : index($0, " " module "/" name " ")) return 1
			}
			return 0
		}
		function class() {
			if (of(cluster)) return "cluster"
			if (of(docker)) return "docker"
			if (of(browser)) return "browser"
			if (of(alone)) return "alone"
			if (of(local)) return "local"
			return "unit"
		}
		NF == 0 { next }
		{ gsub("[][]", " "); $0 = $0 " " }
		wanted == "" { print class(), $1; next }
		index(" " wanted " ", " " class() " ") { print $1 }'

#!/usr/bin/env bash
# Makes sure that a cluster for tests can be started: builds Kubernetes, etcd and helm from the Go module proxy into
# $SANDBOX_CACHE/kube, and as root on Debian installs what else a node needs. The first time takes about ten minutes on two processors;
# afterwards it only looks. Safe to call again and by several at once.
set -euo pipefail
shopt -s inherit_errexit # a failure inside $(...) counts too
cd "$(dirname "$0")"
# shellcheck source-path=SCRIPTDIR
source ./lib.sh

# missing prints the packages of what is not installed.
missing() {
	local need
	for need in curl:curl openssl:openssl gcc:gcc ip:iproute2 iptables:iptables conntrack:conntrack socat:socat containerd:containerd ctr:containerd runc:runc; do
		command -v "${need%:*}" >/dev/null || printf '%s\n' "${need#*:}"
	done
	[[ -e /usr/include/stdlib.h ]] || printf 'libc6-dev\n'
	cni_folder >/dev/null || printf 'containernetworking-plugins\n'
}

install_missing() {
	local packages
	mapfile -t packages < <(missing | sort -u)
	((${#packages[@]} > 0)) || return 0
	if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
		say "missing for a cluster with a node: ${packages[*]}" \
			"(install them, or run this as root on Debian, which does; an API server alone needs curl and openssl only)"
		return
	fi
	say "installing ${packages[*]}"
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 "${packages[@]}" >/dev/null
}

# keep NAME FILE: puts a program in its place, from one moment to the next.
keep() {
	local place
	place=$(program "$1")
	mkdir -p "$(dirname "$place")"
	mv "$2" "$place.$$"
	mv "$place.$$" "$place"
}

complete() {
	local name
	for name; do
		[[ -x $(program "$name") ]] || return 1
	done
}

# logged COMMAND...: runs it, and shows the end of what it said if it fails.
logged() { "$@" >"$work/log" 2>&1 || { tail -n 30 "$work/log" >&2; die "failed: $*"; }; }

# module writes a go.mod that builds all programs, so that what they have in common is compiled once. Kubernetes cannot be installed by name
# anyway, because its go.mod has replacements.
module() {
	local gomod
	gomod=$(cd / && go mod download -json "k8s.io/kubernetes@$kubernetes_version" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
	{
		printf 'module sandbox.internal/cluster\n'
		awk '/^go /; /^godebug/, /^\)/' "$gomod"
		printf 'require %s\n' "k8s.io/kubernetes $kubernetes_version" "go.etcd.io/etcd/server/v3 $etcd_version" \
			"helm.sh/helm/v3 $helm_version"
		printf 'tool k8s.io/kubernetes/cmd/%s\n' "${kubernetes_programs[@]}"
		printf 'tool %s\n' "${packages[@]}"
		# Its staging modules are published under the same number, with major version 0.
		awk -v version="v0.${kubernetes_version#v1.}" '$2 == "=>" && $3 ~ /^\.\/staging\// { print "replace " $1 " => " $1 " " version }' "$gomod"
	} >go.mod
	logged go mod tidy
}

# The packages of the programs that are not Kubernetes' own.
declare -A packages=([etcd]=go.etcd.io/etcd/server/v3 [helm]=helm.sh/helm/v3/cmd/helm)

# build_programs compiles them at once, since a processor is idle while a program is linked, and without symbols for a debugger, which take a
# tenth of the time.
build_programs() {
	local name flags minor=${kubernetes_version#v1.} variable=k8s.io/component-base/version names=() built=()
	mkdir "$work/module" "$work/programs"
	cd "$work/module"
	module
	flags="-s -w -X $variable.gitVersion=$kubernetes_version -X $variable.gitMajor=1 -X $variable.gitMinor=${minor%%.*} -X $variable.gitTreeState=clean"
	# A helm without a cluster takes the version of Kubernetes that it was built with.
	flags+=" -X helm.sh/helm/v3/internal/version.version=$helm_version"
	for name in lint/rules chartutil; do
		flags+=" -X helm.sh/helm/v3/pkg/$name.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/$name.k8sVersionMinor=${minor%%.*}"
	done
	for name in "${kubernetes_programs[@]}" "${!packages[@]}"; do
		complete "$name" && continue
		names+=("$name")
		built+=("${packages[$name]:-k8s.io/kubernetes/cmd/$name}")
	done
	logged go build -trimpath -gcflags=all=-dwarf=false -ldflags "$flags" -o "$work/programs/" "${built[@]}"
	[[ ! -e $work/programs/server ]] || mv "$work/programs/server" "$work/programs/etcd" # named after its folder
	for name in "${names[@]}"; do keep "$name" "$work/programs/$name"; done
}

build_pause() {
	command -v gcc >/dev/null || return 0 # without root and apt there is no node either
	logged gcc -static -Os -s -Wall -o "$work/pause" "$home/pause/pause.c"
	keep pause "$work/pause"
}

# build NAME PROGRAM...
build() {
	local began=$SECONDS
	if complete "${@:2}"; then return; fi
	say "building $1${note:+ ($note)}"
	(cd "$home" && "build_$1")
	say "$1 built in $((SECONDS - began)) s"
}

home=$PWD
export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -mod=mod" GOWORK=off
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

install_missing
note="about ten minutes, once" build programs "${kubernetes_programs[@]}" "${!packages[@]}"
build pause pause
say "Kubernetes $kubernetes_version is in $cache"

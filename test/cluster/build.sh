#!/usr/bin/env bash
# Makes sure that a cluster for tests can be started: builds Kubernetes, etcd, kwok and helm from the Go module proxy into
# $SANDBOX_CACHE/kube, and as root on Debian installs what else a node needs. The first time takes 10 to 16 minutes on two processors;
# afterwards it only looks. Safe to call again and by several at once.
set -euo pipefail
shopt -s inherit_errexit # a failure inside $(...) counts too
cd "$(dirname "$0")"
# shellcheck source-path=SCRIPTDIR
source ./lib.sh

# missing prints the packages of what is not installed.
missing() {
	local need
	for need in openssl:openssl gcc:gcc ip:iproute2 iptables:iptables conntrack:conntrack socat:socat containerd:containerd ctr:containerd runc:runc; do
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
			"(install them, or run this as root on Debian, which does; an API server alone needs openssl only)"
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

# kubernetes_module writes a go.mod that builds the commands of Kubernetes as its own would. They cannot be installed by name, because its
# go.mod has replacements.
kubernetes_module() {
	local info gomod
	info=$(cd / && go mod download -json "k8s.io/kubernetes@$kubernetes_version")
	gomod=$(sed -n 's/.*"GoMod": "\(.*\)".*/\1/p' <<<"$info")
	{
		printf 'module sandbox.internal/kubernetes\n'
		awk '/^go /; /^godebug/, /^\)/' "$gomod"
		printf 'require k8s.io/kubernetes %s\n' "$kubernetes_version"
		printf 'tool k8s.io/kubernetes/cmd/%s\n' "${kubernetes_programs[@]}"
		# Its staging modules are published under the same number, with major version 0.
		awk -v version="v0.${kubernetes_version#v1.}" '$2 == "=>" && $3 ~ /^\.\/staging\// { print "replace " $1 " => " $1 " " version }' "$gomod"
	} >go.mod
}

build_kubernetes() {
	local variable=k8s.io/component-base/version minor=${kubernetes_version#v1.} name
	mkdir "$work/kubernetes"
	cd "$work/kubernetes"
	kubernetes_module
	logged go mod tidy
	logged go build -trimpath -o bin/ -ldflags "-s -w -X $variable.gitVersion=$kubernetes_version -X $variable.gitMajor=1 \
		-X $variable.gitMinor=${minor%%.*} -X $variable.gitTreeState=clean" "${kubernetes_programs[@]/#/k8s.io/kubernetes/cmd/}"
	for name in "${kubernetes_programs[@]}"; do keep "$name" "bin/$name"; done
}

build_etcd() {
	mkdir "$work/etcd"
	cd "$work/etcd"
	printf 'module sandbox.internal/etcd\ngo 1.24.0\nrequire go.etcd.io/etcd/server/v3 %s\ntool go.etcd.io/etcd/server/v3\n' "$etcd_version" >go.mod
	logged go mod tidy
	logged go build -trimpath -ldflags '-s -w' -o etcd go.etcd.io/etcd/server/v3
	keep etcd etcd
}

# install NAME PACKAGE@VERSION [LDFLAGS]
install() {
	GOBIN=$work logged go install -trimpath -ldflags "-s -w ${3:-}" "$2"
	keep "$1" "$work/$1"
}
build_kwok() { install kwok "sigs.k8s.io/kwok/cmd/kwok@$kwok_version" "-X sigs.k8s.io/kwok/pkg/consts.Version=$kwok_version"; }
# A helm without a cluster takes the version of Kubernetes that it was built with.
build_helm() {
	local package minor=${kubernetes_version#v1.} flags="-X helm.sh/helm/v3/internal/version.version=$helm_version"
	for package in lint/rules chartutil; do
		flags+=" -X helm.sh/helm/v3/pkg/$package.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/$package.k8sVersionMinor=${minor%%.*}"
	done
	install helm "helm.sh/helm/v3/cmd/helm@$helm_version" "$flags"
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
export CGO_ENABLED=0 GOFLAGS=-mod=mod GOWORK=off
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

install_missing
note="10 to 16 minutes, once" build kubernetes "${kubernetes_programs[@]}"
build etcd etcd
build kwok kwok
build helm helm
build pause pause
say "Kubernetes $kubernetes_version is in $cache"

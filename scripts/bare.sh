#!/usr/bin/env bash
# Runs the three commands of the README as on a new machine: a clone of HEAD, every cache empty (Go's, npm's, this project's), and a Docker
# Engine of its own without an image. Called by `make bare`, before a release. It says how long each command took, and takes about an hour
# on two processors.
#
# Debian packages stay installed: a machine that has none of them shows more. Everything else goes at the end. FOLDER, if given, is where
# the logs are left.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

say() { printf 'bare: %s\n' "$*"; }
die() { printf 'bare: %s\n' "$@" >&2; exit 1; }

[[ $EUID -eq 0 ]] || die "a Docker Engine of its own needs root"
scripts/engine.sh # installs what an engine is made of

work=$(mktemp -d /var/tmp/sandbox-bare-XXXXXX)
logs=${1:-$work/logs}
mkdir -p "$logs" "$work"/{clone,cache,engine}
logs=$(cd "$logs" && pwd)
bridge=bare$((BASHPID % 100000))
octet=$((BASHPID % 250))
engine=

# end_local ends what is left of the local engine, which `make run` uses where crun is installed, when that command has failed: sandboxes and
# their keeper with its folder, the bridge, and the tables of its name. docs/local.md has the same for people.
end_local() {
	local key deadline=$((SECONDS + 10))
	key=$(printf %s "$work/state/data/local" | sha256sum | cut -c1-8)
	[[ -e /run/sandbox-local/$key ]] || return 0
	until find /sys/fs/cgroup -depth -type d -path "*/sandbox-$key*" -exec rmdir {} + || ((SECONDS >= deadline)); do
		find /sys/fs/cgroup -path "*/sandbox-$key/*" -name cgroup.procs -exec cat {} + | sort -u | xargs -r kill -9
		find /sys/fs/cgroup -path "*/sandbox-$key/*/freezer.state" -exec tee {} + <<<THAWED >/dev/null
		sleep 0.2
	done
	ip link delete sandbox-run
	nft delete table inet sandbox-run
	nft delete table arp sandbox-run
	# What is in DOCKER-USER is removed by the next start of any local engine.
	rm -r "/run/sandbox-local/$key"
}

stop() {
	local status=$?
	trap - EXIT
	if [[ -n $engine ]]; then
		docker ps -aq | xargs -r docker rm -f >/dev/null 2>&1 || true
		kill "$engine" 2>/dev/null || true
		wait "$engine" 2>/dev/null || true
		umount "$work/engine/exec/netns/default" 2>/dev/null || true
		for table in filter nat; do # the rules that name its bridge stay behind
			iptables -w -t "$table" -S | sed -n "/ $bridge /s/^-A /-D /p" | xargs -r -L 1 iptables -w -t "$table" || true
		done
	fi
	end_local 2>/dev/null || true
	ip link delete "$bridge" 2>/dev/null || true
	chmod -R u+w "$work" 2>/dev/null || true # Go's module cache is read-only
	rm -rf --one-file-system "$work"
	exit "$status"
}
trap stop EXIT
trap 'exit 130' INT TERM

ip link add "$bridge" type bridge
ip address add "10.199.$octet.1/24" dev "$bridge"
ip link set "$bridge" up
echo "{\"default-address-pools\": [{\"base\": \"10.198.0.0/16\", \"size\": 24}]}" >"$work/engine/daemon.json"
export DOCKER_HOST=unix://$work/engine/socket
dockerd --config-file "$work/engine/daemon.json" --bridge "$bridge" --data-root "$work/engine/data" --exec-root "$work/engine/exec" \
	--pidfile "$work/engine/pid" --host "$DOCKER_HOST" >"$logs/engine.log" 2>&1 &
engine=$!
deadline=$((SECONDS + 60))
until docker version >/dev/null 2>&1; do
	kill -0 "$engine" 2>/dev/null && ((SECONDS < deadline)) || die "the engine did not come up: $(tail -n 3 "$logs/engine.log")"
	sleep 0.2
done

# Go's settings (a proxy, flags) stay those of this machine; what it keeps does not.
export XDG_CACHE_HOME=$work/cache GOCACHE=$work/cache/go-build GOMODCACHE=$work/cache/go-mod SANDBOX_CACHE=$work/cache/sandbox
export SANDBOX_STATE=$work/state npm_config_cache=$work/cache/npm

git clone --quiet . "$work/clone"
cd "$work/clone"
say "commit $(git rev-parse --short HEAD)"
for target in run test test-all; do
	began=$SECONDS
	status=0
	make "$target" >"$logs/$target.log" 2>&1 </dev/null || status=$?
	say "make $target: exit code $status after $((SECONDS - began)) s"
	if ((status != 0)); then
		grep -E '^(--- FAIL|FAIL|panic:|make.*Error|test: |CGO_ENABLED=)' "$logs/$target.log" | head -n 40 || true
		tail -n 20 "$logs/$target.log"
		exit "$status"
	fi
done

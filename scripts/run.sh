#!/usr/bin/env bash
# Starts the lifecycle service on this machine and takes a first sandbox through its life. On a terminal the service then runs until
# Ctrl-C; without one it stops, and the life's result is the exit code. Called by `make run`, which has built everything.
# PORT (8080) is where it listens, on 127.0.0.1 only. Records, log and the API key, which the first run makes, are kept in $SANDBOX_STATE.
# ENGINE is what sandboxes run on: local, the service's own engine with crun, or docker. By default it is local, which root alone can use, unless
# this machine has a Docker Engine and no crun.
set -euo pipefail
cd "$(dirname "$0")/.."

port=${PORT:-8080}
state=${SANDBOX_STATE:-${XDG_STATE_HOME:-$HOME/.local/state}/sandbox-run}
url=http://127.0.0.1:$port
log=$state/server.log
key=$state/api.key
server=

say() { printf 'run: %s\n' "$*"; }

stop() {
	[[ -n $server ]] || return 0
	kill "$server" 2>/dev/null || true
	wait "$server" 2>/dev/null || true
	server=
}
trap stop EXIT

# healthy asks for /health; a bare machine need not have curl.
healthy() {
	local line
	{ exec 3<>"/dev/tcp/127.0.0.1/$port"; } 2>/dev/null || return 1
	printf 'GET /health HTTP/1.0\r\n\r\n' >&3
	read -r -t 2 line <&3 || line=
	exec 3>&-
	[[ $line == *" 200 "* ]]
}

engine=${ENGINE:-}
image=sandbox/base:dev
if [[ -z $engine ]]; then
	engine=local
	if [[ $EUID -ne 0 ]]; then
		engine=docker
	elif ! command -v crun >/dev/null && docker --host "${DOCKER_HOST:-unix:///var/run/docker.sock}" version >/dev/null 2>&1; then
		engine=docker
	fi
fi
case $engine in
docker)
	scripts/engine.sh
	scripts/images.sh execd base
	;;
local)
	scripts/crun.sh
	if command -v apt-get >/dev/null; then
		scripts/images.sh --archives execd base
	else # of which base is made
		scripts/images.sh --archives execd
		image=docker.io/library/debian:bookworm-slim
	fi
	;;
*)
	say "ENGINE must be local or docker (got \"$engine\")" >&2
	exit 2
	;;
esac
archives=${SANDBOX_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sandbox}/archives

mkdir -p "$state"
if [[ ! -s $key ]]; then
	# Under another name first: what is interrupted must not leave half a key.
	(umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$key.new" && mv "$key.new" "$key")
fi
SERVICE_API_KEY=$(<"$key")
export SERVICE_API_KEY
# A sandbox that asks for nothing gets at most half of the memory, and two processors where there are as many.
cpus=$(nproc)
half=$(awk '$1 == "MemTotal:" { print int($2 / 2048) }' /proc/meminfo)
cat >"$state/sandbox.toml" <<TOML
[server]
host = "127.0.0.1"
port = $port
api_key_file = "$key"
data_dir = "$state/data"
instance = "make-run"
default_image = "$image"

[server.limits]
default_cpu = "$((cpus < 2 ? cpus : 2))"
default_memory = "$((half < 2048 ? half : 2048))Mi"

[runtime]
type = "$engine"
execd_image = "sandbox/execd:dev"

[storage]
host_volumes = false
TOML
if [[ $engine == local ]]; then
	list="\"$archives/execd.tar\""
	[[ $image != sandbox/base:dev ]] || list+=", \"$archives/base.tar\""
	printf '\n[local]\nbridge = "sandbox-run"\narchives = [%s]\n' "$list" >>"$state/sandbox.toml"
else
	printf '\n[docker]\nspare_networks = 2\n' >>"$state/sandbox.toml"
fi

if healthy; then # not ours: it must not get our key
	say "another service answers at $url: PORT=8081 make run uses another port" >&2
	exit 1
fi
bin/sandbox-server --config "$state/sandbox.toml" >"$log" 2>&1 &
server=$!
# Its first start unpacks images, so it may take a few seconds.
deadline=$((SECONDS + 60))
until healthy; do
	if ! kill -0 "$server" 2>/dev/null; then
		say "the service did not start:" >&2
		tail -n 5 "$log" >&2
		if grep -q 'address already in use' "$log"; then say "PORT=8081 make run uses another port" >&2; fi
		exit 1
	fi
	if ((SECONDS >= deadline)); then
		say "the service does not answer at $url (log: $log)" >&2
		exit 1
	fi
	sleep 0.05
done

result=0
bin/sandbox --url "$url" demo --image "$image" || result=$?
if [[ ! -t 0 || ! -t 1 ]]; then
	exit "$result"
fi
say "the API is at $url (log: $log); Ctrl-C stops the service"
say "it demands the key in $key; in another terminal:"
say "  export SERVICE_API_KEY=\$(cat $key)"
say "  bin/sandbox --url $url run $image -- echo hello"
trap 'exit 0' INT TERM
wait "$server"

#!/usr/bin/env bash
# Makes sure that a Docker Engine answers, and says what it did.
# Uses the engine at DOCKER_HOST or at the default socket; else, as root on Debian, installs and starts one.
# An engine that runs is never touched. Safe to call again and by several at once.
set -euo pipefail
shopt -s inherit_errexit # a failure inside $(...) counts too

host=${DOCKER_HOST:-unix:///var/run/docker.sock}
log=/var/log/dockerd.log
patience=60 # seconds that a new engine gets to answer

say() { printf 'engine: %s\n' "$*"; }
die() { printf 'engine: %s\n' "$@" >&2; exit 1; }

answers() { docker --host "$host" version --format '{{.Server.Version}}' 2>/dev/null; }

found() { say "Docker Engine $1 at $host"; exit 0; }

is_debian() {
	# In a subshell, so that the file's variables stay out of this script.
	# shellcheck source=/dev/null
	(. /etc/os-release 2>/dev/null && [[ " ${ID:-} ${ID_LIKE:-} " == *" debian "* ]])
}

install_engine() {
	# Newer Debians have the command-line tool in a package of its own.
	local packages=(docker.io iptables ca-certificates)
	say "installing ${packages[*]}"
	apt-get update -qq
	if apt-cache show docker-cli >/dev/null 2>&1; then packages+=(docker-cli); fi
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
		-o DPkg::Lock::Timeout=300 "${packages[@]}" >/dev/null
}

dockerd_runs() {
	local pid
	pid=$(cat /run/docker.pid 2>/dev/null) && [[ $(cat "/proc/$pid/comm" 2>/dev/null) == dockerd ]]
}

start_engine() {
	if dockerd_runs; then
		say "dockerd runs already: waiting for it to answer"
	elif [[ -d /run/systemd/system ]]; then
		say "starting docker.service"
		systemctl start docker.service
		log=
	else
		say "starting dockerd (log: $log)"
		# A session of its own survives this script; without 9>&- it would hold the lock as long as it lives.
		setsid nohup dockerd >>"$log" 2>&1 </dev/null 9>&- &
		dockerd_pid=$!
	fi
}

wait_for_engine() {
	local version deadline=$((SECONDS + patience))
	while ((SECONDS < deadline)); do
		if version=$(answers); then found "$version"; fi
		if [[ -n ${dockerd_pid:-} ]] && ! kill -0 "$dockerd_pid" 2>/dev/null; then
			say "dockerd ended"
			break
		fi
		sleep 0.2
	done
}

if version=$(answers); then found "$version"; fi

[[ -z ${DOCKER_HOST:-} ]] || die "nothing answers at DOCKER_HOST=$DOCKER_HOST" \
	"start that engine, or unset DOCKER_HOST to use the one of this machine (the docker command must be installed)"
if [[ $EUID -ne 0 ]] || ! is_debian; then
	die "no Docker Engine answers at $host" \
		"install Docker Engine 20.10 or newer with its command-line tool (https://docs.docker.com/engine/install/)," \
		"start it, and give this user access to its socket (usually: the group docker);" \
		"or set DOCKER_HOST; or run this as root on Debian, which installs it"
fi

exec 9>/run/lock/sandbox-engine.lock
flock 9
if version=$(answers); then found "$version"; fi # another run has just started it

for tool in dockerd docker iptables; do
	if ! command -v "$tool" >/dev/null; then
		install_engine
		break
	fi
done
start_engine
wait_for_engine
if [[ -n $log && -s $log ]]; then tail -n 20 "$log" >&2; fi
die "the Docker Engine did not come up at $host${log:+ (log: $log)}"

# What the scripts beside this one share. It stands in front of them.
set -euo pipefail
export SANDBOX_CONTEXTS=/run/contexts.json
server= log=/run/server.log

fail() {
	printf 'FAILED: %s\n' "$*"
	tail -n 20 "$log" /run/command.log 2>/dev/null || true
	exit 1
}

# does COMMAND...: the command succeeds.
does() { "$@" >/run/command.log 2>&1 || fail "$*: exit code $?"; }

# says TEXT COMMAND...: the command succeeds and prints the text.
says() {
	does "${@:2}"
	grep -Fq -e "$1" /run/command.log || fail "${*:2}: does not print $1"
}

# refuses TEXT COMMAND...: the command fails, and prints the text.
refuses() {
	if "${@:2}" >/run/command.log 2>&1; then fail "${*:2}: succeeds"; fi
	grep -Fq -e "$1" /run/command.log || fail "${*:2}: does not print $1"
}

# within SECONDS COMMAND...: the command succeeds in that time.
within() {
	local deadline=$((SECONDS + $1))
	until "${@:2}" >/run/command.log 2>&1; do
		((SECONDS < deadline)) || fail "${*:2}: does not succeed within $1 s"
		sleep 0.05 # between two looks
	done
}

login() { sandbox login http://127.0.0.1:8080 <"$1"; }

# start FILE: starts the service, whose key the file has.
start() {
	sandbox-server --config /etc/sandbox/sandbox.toml >>"$log" 2>&1 &
	server=$!
	within 100 login "$1"
}

stop() {
	kill "$server"
	wait "$server" || fail "the service ended with exit code $?"
}

# no_process NAME: no process has a program of that name.
no_process() { ! readlink /proc/[0-9]*/exe | grep -q "/$1\( (deleted)\)\?$"; }

#!/bin/bash
# What boot.sh runs on a machine at each boot. It prints one line per check, and "failed" or "boot N is over" last.
set -uo pipefail
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
SERVICE_API_KEY=$(</etc/sandbox/api.key)
export SERVICE_API_KEY
image=sandbox/busybox:dev
data=/var/lib/sandbox-server/local
key=$(printf %s "$data" | sha256sum | cut -c1-8)
boot=$(sed -n 's/.*machine\.boot=\([0-9]*\).*/\1/p' /proc/cmdline)
output=/run/machine.output

say() { printf 'machine: %s\n' "$*"; }

# check WHAT COMMAND...: the command must succeed; what it has printed is shown if it does not.
check() {
	local began=$SECONDS
	if ! "${@:2}" >"$output" 2>&1; then
		say "FAILED $1: ${*:2}"
		while read -r line; do say "    $line"; done < <(tail -n 20 "$output"; journalctl -u sandbox-server -n 5 --no-pager -o cat)
		say "failed"
		exit 1
	fi
	say "ok $1 ($((SECONDS - began)) s)"
}

# prints TEXT COMMAND...: what the command prints has the text in it.
prints() { "${@:2}" >"$output.printed" 2>&1; cat "$output.printed"; grep -qF -- "$1" "$output.printed"; }

# within SECONDS COMMAND...: the command succeeds before that time is over.
within() {
	local deadline=$((SECONDS + $1))
	until "${@:2}"; do
		((SECONDS < deadline)) || return 1
		sleep 0.2
	done
}

# status SANDBOX: its state and reason.
status() { sandbox get "$1" -o yaml; }

in_box() { sandbox run --memory 128Mi "$image" -- sh -c "$1"; }

limited_memory() {
	sandbox create "$image" --name hungry --memory 32Mi -- sh -c 'sleep 2; tail /dev/zero' || return 1
	sandbox wait hungry --for Failed --limit 60s
	prints OOM_KILLED status hungry
}

paused() {
	sandbox exec counter -- cat /tmp/n >/run/before || return 1
	sandbox pause counter || return 1
	local group
	group=$(dirname "$(grep -l 1 /sys/fs/cgroup/sandbox-"$key"/*/cgroup.freeze)")
	grep -q 'frozen 1' "$group/cgroup.events" || return 1
	sandbox resume counter
	sandbox exec counter -- sh -c 'a=$(cat /tmp/n); sleep 1; b=$(cat /tmp/n); echo $a $b; test $b -gt $a'
}

policy() {
	printf '{"defaultAction":"deny","egress":[{"action":"allow","target":"10.0.2.100"}]}' >/run/policy.json
	printf '{"defaultAction":"deny"}' >/run/closed.json
	prints hello sandbox run --policy /run/policy.json "$image" -- sh -c 'echo hello | timeout 10 nc 10.0.2.100 7' || return 1
	! sandbox run --policy /run/closed.json "$image" -- sh -c 'echo hello | timeout 10 nc 10.0.2.100 7'
}

kept() { sandbox run -v kept:/data "$image" -- sh -c 'echo kept >/data/file; sync'; }

# one hierarchy, of version 2, and nothing of Docker.
pure() {
	grep cgroup /proc/mounts
	[[ $(stat -f -c %T /sys/fs/cgroup) == cgroup2fs ]] && ! grep -q ' cgroup rw' /proc/mounts && ! command -v docker dockerd containerd runc
}

# empty: nothing of a sandbox is at the kernel or in the folders of the engine.
empty() {
	ls "$data/containers" "$data/trash"
	find "/sys/fs/cgroup/sandbox-$key" -mindepth 1 -maxdepth 1 -type d
	ip link show master sandbox0
	[[ -z $(ls "$data/containers") && -z $(ls "$data/trash") ]] &&
		[[ $(find "/sys/fs/cgroup/sandbox-$key" -mindepth 1 -maxdepth 1 -type d | wc -l) == 1 ]] &&
		[[ -z $(find "/run/sandbox-local/$key/"{mounts,runtime/crun} -mindepth 1) ]] && ! pgrep crun
}

# nothing: neither the keeper, nor what it needs.
nothing() {
	! [[ -e /sys/fs/cgroup/sandbox-$key || -e /run/sandbox-local/$key ]] && ! ip link show sandbox0 && ! nft list table inet sandbox0 && ! nft list table arp sandbox0 && ! pgrep sandbox-keeper
}

first() {
	say "$(uname -srm), $(crun --version | head -n 1)"
	check "cgroup v2 alone, no Docker" pure
	check "the service" within 120 sandbox ls
	check "doctor" sandbox doctor
	check "a life" sandbox demo --image "$image"
	check "output" prints hello sandbox run "$image" -- echo hello
	check "the limit of memory" limited_memory
	check "the limit of processes" prints "can't fork" in_box 'i=0; while [ $i -lt 600 ]; do sleep 60 & i=$((i+1)); done'
	check "the limit of processor time" prints "25000 100000" sandbox run --cpu 0.25 "$image" -- cat /sys/fs/cgroup/cpu.max
	check "seccomp" prints "Seccomp:	2" in_box 'cat /proc/self/status'
	check "no mounts" prints "denied" in_box 'mount -t tmpfs none /tmp'
	check "a counter" sandbox create "$image" --name counter -- sh -c 'n=0; while :; do n=$((n+1)); echo $n >/tmp/n; sleep 0.1; done'
	check "pause and resume" paused
	check "egress policy" policy
	check "a volume" kept
	check "a stop leaves sandboxes running" systemctl stop sandbox-server
	check "a process of one" pgrep -f 'n=0; while'
	check "a start" systemctl start sandbox-server
	check "the service again" within 120 sandbox ls
	check "the same sandbox" sandbox exec counter -- cat /tmp/n
	check "one that is paused" sandbox create "$image" --name still
	check "its pause" sandbox pause still
	check "one with a volume" sandbox create "$image" --name writer -v kept:/data
	sandbox ls
}

second() {
	check "the service" within 120 sandbox ls
	local name
	for name in counter still writer; do
		check "the end of $name" within 120 prints ENTRYPOINT_EXITED status "$name"
	done
	sandbox ls --all
	check "nothing is left" within 120 empty
	check "the volume" prints kept sandbox run -v kept:/data "$image" -- cat /data/file
	check "a life" sandbox demo --image "$image"
	check "doctor" sandbox doctor
	check "removal" sandbox rm --all
	check "a stop" systemctl stop sandbox-server
	check "nothing is left at the kernel" within 60 nothing

	check "sandboxes that outlive a reboot" sed -i 's/^\[local\]$/&\nkeep_across_reboot = true/' /etc/sandbox/sandbox.toml
	check "a start" systemctl start sandbox-server
	check "the service again" within 120 sandbox ls
	check "one that runs" sandbox create "$image" --name runs -v kept:/data -- sh -c 'echo started >>/starts; sync /starts; exec sleep 100000'
	check "what it syncs" sandbox exec runs -- sh -c 'echo synced >/file; sync /file'
	check "one that is paused" sandbox create "$image" --name frozen
	check "its pause" sandbox pause frozen
}

# after a loss of power
third() {
	check "the service" within 120 sandbox ls
	local name
	for name in runs frozen; do
		check "the reboot in the status of $name" within 120 prints HOST_REBOOTED status "$name"
		check "the state of $name" prints Paused status "$name"
	done
	check "no process of one" eval '! pgrep -f "sleep 100000"'
	check "resume" sandbox resume runs
	check "what it has synced" prints synced sandbox exec runs -- cat /file
	check "its volume" prints kept sandbox exec runs -- cat /data/file
	check "its entrypoint" prints 2 sandbox exec runs -- sh -c 'wc -l </starts'
}

case $boot in 1) first ;; 2) second ;; *) third ;; esac
say "boot $boot is over"

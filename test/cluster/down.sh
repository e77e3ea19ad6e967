#!/usr/bin/env bash
# Removes a cluster for tests: its processes, pods, mounts, network, rules, control groups and folder, whatever state it is in.
# Usage: down.sh FOLDER
set -euo pipefail
shopt -s inherit_errexit # a failure inside $(...) counts too
scripts=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR
source "$scripts/lib.sh"
# shellcheck source-path=SCRIPTDIR
source "$scripts/host.sh"

(($# == 1)) || die "usage: down.sh FOLDER"
dir=${1%/}
[[ -e $dir ]] || exit 0
read_settings

# shims prints the processes that watch over containers.
shims() {
	local pid
	for pid in $(pgrep -f -- "containerd-shim.* -address $dir/containerd.sock" || true); do
		if names_folder "$pid"; then printf '%s ' "$pid"; fi
	done
}

no_shims() {
	local pids
	pids=$(shims)
	[[ -n $pids ]] || return 0
	# shellcheck disable=SC2086 # several
	kill -KILL $pids 2>/dev/null || true
	return 1
}

# mounts prints what is mounted in the folder, the innermost first.
mounts() { awk -v folder="$dir/" 'index($5, folder) == 1 { print $5 }' /proc/self/mountinfo | tac; }

no_mounts() {
	local mount
	while read -r mount; do umount "$mount" 2>/dev/null || umount --lazy "$mount" 2>/dev/null || true; done < <(mounts)
	[[ -z $(mounts) ]]
}

no_folder() { rm -rf --one-file-system "$dir" 2>/dev/null; }

# What ends with the cluster needs no time to end in order. The cluster's owner may be the one who waits for this script.
if owner=$(pid_of owner); then kill -KILL -- "-$owner" 2>/dev/null || true; fi # and what it waits with
end KILL owner "${components[@]}"
if [[ $mode == node ]]; then
	lower_cgroup
	within 60 no_shims || die "shims of $dir did not end: $(shims)"
	# Their sockets are where every containerd has them.
	for file in "$dir"/run/containerd/io.containerd.runtime.v2.task/*/*/address; do
		[[ ! -e $file ]] || rm -f "$(sed 's|^unix://||' "$file")"
	done
	within 60 no_mounts || die "still mounted: $(mounts)"
	lower_network
	# Names of the logs of containers, and what the plugins remembered of their networks.
	find /var/log/containers -maxdepth 1 -type l -lname "$dir/*" -delete 2>/dev/null || true
	for file in /var/lib/cni/results/"$bridge"-*-eth0; do
		[[ -e $file ]] || continue
		container=${file#"/var/lib/cni/results/$bridge-"}
		rm -f "$file" "/var/lib/cni/results/cni-loopback-${container%-eth0}-lo"
	done
fi
within 60 no_folder || die "$dir could not be removed: $(ls -A "$dir")"

exec 9>"$claims/lock"
flock 9
rm -f "$claims/$number"
[[ $mode != node ]] || restore_host

# shellcheck shell=bash disable=SC2154 # the settings of the cluster are the caller's
# What a cluster has of the host: its number, a bridge with rules of its own, a control group. Each is made here and removed here.
# Sourced by up.sh and down.sh, never run.

# Each file is named after a number and holds the folder of the cluster that has it.
claims=/tmp/sandbox-clusters-$EUID

# The rules of a cluster: its pods reach the API server by the address of its service, and everything else as the host does. Where the
# Docker Engine runs, packets are not forwarded unless a rule says so.
each_rule() {
	"$@" nat PREROUTING -d "$service/32" -p tcp --dport 443 -j DNAT --to-destination "$address:$port_api"
	"$@" nat OUTPUT -d "$service/32" -p tcp --dport 443 -j DNAT --to-destination "$address:$port_api"
	"$@" nat POSTROUTING -s "$subnet" ! -d "$subnet" -j MASQUERADE
	"$@" filter FORWARD -i "$bridge" -j ACCEPT
	"$@" filter FORWARD -o "$bridge" -j ACCEPT
}
add_rule() { iptables --wait -t "$1" -I "$2" 1 "${@:3}"; }
delete_rule() { while iptables --wait -t "$1" -D "$2" "${@:3}" 2>/dev/null; do :; done; }

raise_network() {
	ip link add "$bridge" type bridge
	ip address add "$address/22" dev "$bridge"
	ip link set "$bridge" up
	printf 1 >/proc/sys/net/ipv4/ip_forward
	each_rule add_rule
}

lower_network() {
	local link
	each_rule delete_rule
	[[ -e /sys/class/net/$bridge ]] || return 0
	for link in "/sys/class/net/$bridge/brif"/*; do
		[[ ! -e $link ]] || ip link delete "${link##*/}" 2>/dev/null || true # it goes with its pod, if not now
	done
	ip link delete "$bridge"
}

# cgroups NUMBER: prints the control groups of the cluster with this number that are there.
cgroups() {
	local group
	for group in /sys/fs/cgroup/sandbox-cluster-"$1" /sys/fs/cgroup/*/sandbox-cluster-"$1"; do
		[[ ! -d $group ]] || printf '%s\n' "$group"
	done
}

raise_cgroup() {
	local hierarchy file
	if [[ -e /sys/fs/cgroup/cgroup.controllers ]]; then
		for hierarchy in cpu cpuset io memory pids hugetlb; do # the kubelet reports what is missing
			printf '+%s' "$hierarchy" 2>/dev/null >/sys/fs/cgroup/cgroup.subtree_control || true
		done
		mkdir "/sys/fs/cgroup/$cgroup"
		return
	fi
	while read -r hierarchy; do
		mkdir -p "$hierarchy/$cgroup"
		for file in cpuset.cpus cpuset.mems; do # empty, they would allow nothing
			[[ ! -e $hierarchy/$cgroup/$file ]] || cat "$hierarchy/$file" >"$hierarchy/$cgroup/$file"
		done
	done < <(awk '$3 == "cgroup" && $2 ~ /^\/sys\/fs\/cgroup\// { print $2 }' /proc/mounts)
}

# lower_cgroup ends every process of every pod and removes the groups.
lower_cgroup() { within 60 cgroup_is_gone || die "processes in these control groups did not end: $(cgroups "$number")"; }

cgroup_is_gone() {
	local group file
	while read -r group; do
		# A frozen process does not die.
		while read -r file; do printf THAWED >"$file" 2>/dev/null || true; done < <(find "$group" -name freezer.state 2>/dev/null)
		while read -r file; do printf 0 >"$file" 2>/dev/null || true; done < <(find "$group" -name cgroup.freeze 2>/dev/null)
		find "$group" -name cgroup.procs -exec cat {} + 2>/dev/null | sort -u | xargs -r kill -KILL 2>/dev/null || true
		find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
	done < <(cgroups "$number")
	[[ -z $(cgroups "$number") ]]
}

# What every kubelet changes of the host: settings of the kernel, and a folder whose place cannot be chosen. The first cluster keeps how it
# was, and the last one puts it back.
sysctls=(vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes)

keep_host() {
	local name
	[[ ! -e $claims/sysctls ]] || return 0
	[[ -e /var/lib/kubelet ]] || printf 'no folder\n' >"$claims/kubelet"
	for name in "${sysctls[@]}"; do
		[[ ! -r /proc/sys/$name ]] || printf '%s %s\n' "$name" "$(cat "/proc/sys/$name")"
	done >"$claims/sysctls"
}

restore_host() {
	local name value claim
	[[ -e $claims/sysctls ]] || return 0
	for claim in "$claims"/[0-9]*; do
		[[ ! -e $claim || ! -e $(<"$claim") ]] || return 0
	done
	while read -r name value; do
		[[ $(cat "/proc/sys/$name") == "$value" ]] || printf '%s' "$value" >"/proc/sys/$name"
	done <"$claims/sysctls"
	[[ ! -e $claims/kubelet ]] || rm -rf --one-file-system /var/lib/kubelet
	rm -f "$claims"/{sysctls,kubelet}
}

# shellcheck shell=bash disable=SC2034 # some of it is used by those who source this
# What the scripts of this folder share: the versions, where the programs are kept, and how the components of a cluster are started and
# ended. Sourced, never run.

# The newest Kubernetes that accepts version 1 of control groups without being asked, and what goes with it.
kubernetes_version=v1.34.4 etcd_version=v3.6.4 helm_version=v3.19.0 pause_version=1

# One folder per program and version, so that a new version of one builds that one alone, and checkouts do not disturb each other.
# A program is complete, or not there.
cache=${SANDBOX_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sandbox}/kube
kubernetes_programs=(kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl)

say() { printf 'cluster: %s\n' "$*" >&2; }
die() { printf 'cluster: %s\n' "$@" >&2; exit 1; }

# program NAME: prints where it is kept.
program() {
	case $1 in
	kube-* | kubelet | kubectl) printf '%s/kubernetes-%s/%s' "$cache" "$kubernetes_version" "$1" ;;
	etcd) printf '%s/etcd-%s/etcd' "$cache" "$etcd_version" ;;
	helm) printf '%s/helm-%s/helm' "$cache" "$helm_version" ;;
	pause) printf '%s/pause-%s/pause' "$cache" "$pause_version" ;;
	*) die "no program $1" ;;
	esac
}

# cni_folder prints where this machine keeps its CNI plugins.
cni_folder() {
	local folder
	for folder in /usr/lib/cni /opt/cni/bin /usr/libexec/cni; do
		if [[ -x $folder/bridge && -x $folder/host-local && -x $folder/loopback ]]; then
			printf '%s' "$folder"
			return
		fi
	done
	return 1
}

# The components of a cluster, in the order in which they are started.
components=(etcd kube-apiserver containerd kube-controller-manager kube-scheduler kubelet)

# The functions below work on the cluster in $dir.

# read_settings reads what up.sh decided for the cluster.
read_settings() {
	[[ -r ${dir:=}/settings ]] || die "$dir holds no cluster"
	mode='' number='' address='' subnet='' service='' bridge='' cgroup=''
	port_api='' port_etcd='' port_etcd_peer='' port_controller_manager='' port_scheduler='' port_kubelet='' port_kubelet_health=''
	# shellcheck source=/dev/null
	source "$dir/settings"
}

# pid_of NAME: prints the component's process, if it runs. Its number may be another process's by now: its command line names the folder.
pid_of() {
	local pid
	pid=$(cat "$dir/pid/$1" 2>/dev/null) && [[ -n $pid ]] && names_folder "$pid" && printf '%s' "$pid"
}

# names_folder PID: the process lives, is no zombie, and its command line names a file of the cluster. In the middle of an exec a process has
# no command line for a moment.
names_folder() {
	local line tries
	for ((tries = 0; tries < 100; tries++)); do
		if gone "$1"; then return 1; fi
		line=$(tr '\0' ' ' 2>/dev/null <"/proc/$1/cmdline") || true
		if [[ -n $line ]]; then
			[[ $line == *"$dir/"* ]]
			return
		fi
		sleep 0.01
	done
	return 1
} 2>/dev/null

# launch NAME: starts the component in a session of its own. It outlives the caller and holds none of its files.
launch() {
	local pid
	setsid nohup "$dir/command/$1" >>"$dir/log/$1.log" 2>&1 </dev/null 9>&- &
	pid=$!
	disown "$pid"
	printf '%s' "$pid" >"$dir/pid/$1"
	# Before its first exec the process looks like this script.
	while kill -0 "$pid" 2>/dev/null && ! names_folder "$pid"; do sleep 0.01; done
}

# within SECONDS COMMAND...: repeats the command until it succeeds.
within() {
	local deadline=$((SECONDS + $1))
	shift
	until "$@"; do
		((SECONDS < deadline)) || return 1
		sleep 0.05
	done
}

# end SIGNAL NAME...: ends components and returns when their processes are gone.
end() {
	local name pid pids=()
	for name in "${@:2}"; do
		if pid=$(pid_of "$name"); then pids+=("$pid"); fi
	done
	for pid in "${pids[@]}"; do kill "-$1" "$pid" 2>/dev/null || true; done
	for pid in "${pids[@]}"; do
		within 60 gone "$pid" || die "process $pid did not end after signal $1"
	done
	for name in "${@:2}"; do rm -f "$dir/pid/$name"; done
}

# gone PID: the process has ended, all its threads too, so that its files and ports are free. It may not have been waited for yet.
gone() {
	local threads
	[[ -e /proc/$1 ]] || return 0
	threads=$(cat "/proc/$1/task"/*/stat 2>/dev/null | sed 's/.*) //')
	[[ -z $threads || $threads == Z* && $threads != *$'\n'* ]]
}

# accepts ADDRESS PORT: something takes connections there.
accepts() { (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null; }

# answers_ok ADDRESS PORT PATH: an HTTP server there answers 200.
answers_ok() {
	(
		exec 3<>"/dev/tcp/$1/$2" || exit 1
		printf 'GET %s HTTP/1.0\r\n\r\n' "$3" >&3
		read -r -t 5 line <&3 && [[ $line == *" 200 "* ]]
	) 2>/dev/null
}

# get PATH: asks the API server as its administrator. kubectl would take a processor for half a second each time, and the API server needs it.
get() {
	curl --fail --silent --max-time 10 --cacert "$dir/pki/ca.crt" --cert "$dir/pki/administrator.crt" --key "$dir/pki/administrator.key" \
		"https://$address:$port_api$1"
}

# works NAME: the component does what it is there for.
works() {
	case $1 in
	etcd) answers_ok 127.0.0.1 "$port_etcd" /health ;;
	kube-apiserver) accepts "$address" "$port_api" && get /readyz >/dev/null ;;
	containerd) ctr --address "$dir/containerd.sock" version >/dev/null 2>&1 ;;
	kube-controller-manager) accepts 127.0.0.1 "$port_controller_manager" ;;
	kube-scheduler) accepts 127.0.0.1 "$port_scheduler" ;;
	kubelet) answers_ok 127.0.0.1 "$port_kubelet_health" /healthz ;;
	esac
}

# works_or_ended NAME: works, or never will.
works_or_ended() { works "$1" || ! pid_of "$1" >/dev/null; }

# await NAME: returns when the component works; otherwise it prints the end of its log.
await() {
	if within "$patience" works_or_ended "$1" && pid_of "$1" >/dev/null; then return; fi
	say "$1 did not come up; the end of its log:"
	tail -n 15 "$dir/log/$1.log" >&2 || true
	return 1
}
patience=240 # seconds; a busy machine is slow

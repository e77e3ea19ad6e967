#!/usr/bin/env bash
# Ends and starts single components of a cluster for tests, as an accident would. Usage: component.sh start|stop|kill|restart NAME FOLDER
#   start    starts the component again and returns when it works
#   stop     SIGTERM; returns when the process is gone
#   kill     SIGKILL; likewise. Pods outlive kubelet and containerd.
#   restart  kill, then start
# NAME is etcd, kube-apiserver, kube-controller-manager, kube-scheduler, containerd or kubelet.
set -euo pipefail
shopt -s inherit_errexit # a failure inside $(...) counts too
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/lib.sh"

(($# == 3)) || die "usage: component.sh start|stop|kill|restart NAME FOLDER"
name=$2 dir=${3%/}
read_settings
[[ " ${components[*]} " == *" $name "* && -x $dir/command/$name ]] ||
	die "this cluster (mode $mode) has no component $name; it has: $(cd "$dir/command" && printf '%s ' *)"

start() {
	pid_of "$name" >/dev/null || launch "$name"
	await "$name"
}

case $1 in
start) start ;;
stop) end TERM "$name" ;;
kill) end KILL "$name" ;;
restart) end KILL "$name" && start ;;
*) die "start, stop, kill or restart, not $1" ;;
esac

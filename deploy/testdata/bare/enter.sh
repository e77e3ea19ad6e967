#!/usr/bin/env bash
# Runs the script on standard input on the file system in a folder as on a machine of its own: without another network, and with /proc, /sys and
# /dev. Usage: enter.sh ROOT [ARGUMENT...], in new namespaces of mounts, processes, network and IPC, whose first process it is.
# FOLDERS has lines with a folder of the host and one of ROOT, which shows it and cannot change it.
set -euo pipefail
root=$1
shift
mount --make-rprivate /
mount --bind "$root" "$root"
cd "$root"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount --rbind /sys/fs/cgroup sys/fs/cgroup
mount --rbind /dev dev
while read -r source target; do
	[[ -n $source ]] || continue
	mount --bind "$source" "$root$target"
	mount -o remount,bind,ro "$root$target"
done <<<"${FOLDERS:-}"
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mkdir run/host
# Not a change of the root directory alone: a process in one makes no user namespace.
pivot_root . run/host
umount -l /run/host
rmdir /run/host
ip link set lo up
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 /bin/bash -s "$@"

#!/usr/bin/env bash
# Boots machines that differ from this one, in QEMU without KVM, and runs the local engine on them: a Debian with systemd, control groups of
# version 2 only, crun and no Docker. On each, inside.sh takes sandboxes through their lives; then the power is cut, the machine boots again
# from the same disk, and inside.sh looks at what is left. It does so once more with sandboxes that outlive that.
# Usage: test/machine/boot.sh [SUITE-ARCHITECTURE...], of bookworm or newer and amd64 or arm64. Called by `make machines`.
# It needs Debian, root, 2 GiB of memory and 5 GiB of disk, and about ten minutes per machine. What is downloaded is kept in
# $SANDBOX_CACHE/machines.
# PROGRAMS=FOLDER has the programs, compiled for the machine; without it they are compiled.
# SHELL_SOCKET=FILE is where a root shell of the machine is (socat - FILE), which then stays on at the end. QEMU_FLAGS are more flags.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/../.."

cache=${SANDBOX_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sandbox}/machines
work=$(mktemp -d)
read -ra flags <<<"${QEMU_FLAGS:-}"
qemu=
trap '[[ -z $qemu ]] || kill -9 "$qemu" 2>/dev/null || true; rm -rf "$work"' EXIT

say() { printf 'machine: %s\n' "$*"; }
die() { printf 'machine: %s\n' "$@" >&2; exit 1; }

# What the machine has from Debian, beside a kernel.
packages=systemd-sysv,udev,kmod,crun,nftables,iproute2,busybox-static,bash,coreutils,dash,grep,sed,findutils,util-linux,mount,procps,base-passwd,base-files
# What its kernel needs to find the disk and the shell.
modules=(virtio_pci virtio_blk virtio_net virtio_console virtio_rng ext4)

install_missing() {
	local need missing=()
	for need in qemu-system-x86_64:qemu-system-x86 qemu-system-aarch64:qemu-system-arm mmdebstrap:mmdebstrap depmod:kmod mkfs.ext4:e2fsprogs cpio:cpio; do
		command -v "${need%:*}" >/dev/null || missing+=("${need#*:}")
	done
	((${#missing[@]})) || return 0
	say "installing ${missing[*]}"
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 "${missing[@]}" >/dev/null
}

# debian SUITE ARCHITECTURE FOLDER: unpacks the packages. Nothing of them is run, so they may be of another architecture.
debian() {
	local archive=$cache/$1-$2.tar kernel=linux-image-cloud-$2
	if [[ ! -s $archive ]]; then
		mkdir -p "$cache"
		say "getting Debian $1 for $2"
		mmdebstrap --quiet --format=tar --variant=extract --mode=root --arch="$2" --aptopt='APT::Install-Recommends "false"' \
			--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr --include="$packages,$kernel" "$1" "$archive.$$"
		mv "$archive.$$" "$archive"
	fi
	mkdir "$3"
	tar -C "$3" --exclude='./dev/*' -xf "$archive"
	# What the packages' scripts would have done.
	cp "$3"/usr/share/base-passwd/passwd.master "$3/etc/passwd"
	cp "$3"/usr/share/base-passwd/group.master "$3/etc/group"
	[[ -e $3/bin/sh ]] || ln -s dash "$3/bin/sh"
	depmod -b "$3" "$(kernel_of "$3")"
}

kernel_of() { basename "$1"/lib/modules/*; }

# image FOLDER NAME ROOT CONFIG: an archive in the form of `docker save`.
image() {
	local layer
	tar --numeric-owner --owner=0 --group=0 -C "$3" -cf "$work/layer.tar" .
	layer=$(sha256sum <"$work/layer.tar" | cut -c1-64)
	printf '{"architecture":"%s","os":"linux","config":%s,"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' "$arch" "$4" "$layer" >"$work/config.json"
	printf '[{"Config":"config.json","RepoTags":["sandbox/%s:dev"],"Layers":["layer.tar"]}]' "$2" >"$work/manifest.json"
	tar -C "$work" -cf "$1/$2.tar" layer.tar config.json manifest.json
}

# programs ROOT: puts what is tested onto the machine, as `make install` does, and images to make sandboxes from.
programs() {
	local built=$work/programs tree=$work/tree images=$1/var/lib/sandbox-images applet
	if [[ -n ${PROGRAMS:-} ]]; then
		cp -R "$PROGRAMS" "$built"
	else
		GOARCH=$arch CGO_ENABLED=0 go build -trimpath -buildvcs=false -gcflags=all=-dwarf=false -ldflags '-s -w' -o "$built/" \
			./clients/cmd/sandbox ./server/cmd/sandbox-{server,keeper} ./execd/cmd/execd{,-init} ./egress/cmd/egress{,-init}
	fi
	install -D -t "$1/usr/local/bin" "$built"/sandbox*
	install -D -m 0644 -t "$1/etc/systemd/system" deploy/systemd/sandbox-server.service test/machine/*.service
	install -D -t "$1/usr/local/sbin" test/machine/inside.sh
	mkdir -p "$images" "$tree"/{execd,egress}/opt/sandbox "$tree"/busybox/{bin,etc,proc,sys,dev,tmp,root}
	install "$built"/execd* "$tree/execd/opt/sandbox/"
	install "$built"/egress* "$tree/egress/opt/sandbox/"
	cp "$1/bin/busybox" "$tree/busybox/bin/"
	for applet in sh cat echo env grep kill ls mount nc ps sleep sync tail test timeout wc; do ln -s busybox "$tree/busybox/bin/$applet"; done
	image "$images" execd "$tree/execd" '{"Entrypoint":["/opt/sandbox/execd"]}'
	image "$images" egress "$tree/egress" '{"Entrypoint":["/opt/sandbox/egress-init","/opt/sandbox/egress"],"ExposedPorts":{"18080/tcp":{}}}'
	image "$images" busybox "$tree/busybox" '{"Cmd":["sh"]}'
	rm -rf "$built" "$tree"
}

# settings ROOT: what an administrator sets.
settings() {
	local root=$1
	mkdir -p "$root"/etc/{sandbox,systemd/system/multi-user.target.wants,systemd/network,modules-load.d}
	printf '%032x\n' 1 >"$root/etc/machine-id" # without it systemd takes the boot for its first one
	echo machine >"$root/etc/hostname"
	printf '127.0.0.1 localhost machine\n' >"$root/etc/hosts"
	printf 'nameserver 10.0.2.3\n' >"$root/etc/resolv.conf"
	printf '[Match]\nType=ether\nKind=!*\n[Network]\nAddress=10.0.2.15/24\nGateway=10.0.2.2\n' >"$root/etc/systemd/network/10-wired.network"
	printf '%064d' 7 >"$root/etc/sandbox/api.key"
	cat >"$root/etc/sandbox/sandbox.toml" <<-TOML
		[server]
		host = "127.0.0.1"
		api_key_file = "/etc/sandbox/api.key"
		[runtime]
		type = "local"
		execd_image = "sandbox/execd:dev"
		[egress]
		image = "sandbox/egress:dev"
		[local]
		archives = ["/var/lib/sandbox-images/execd.tar", "/var/lib/sandbox-images/egress.tar", "/var/lib/sandbox-images/busybox.tar"]
	TOML
	local unit
	for unit in /etc/systemd/system/{sandbox-server,machine,shell}.service /lib/systemd/system/systemd-networkd.service; do
		ln -s "$unit" "$root/etc/systemd/system/multi-user.target.wants/"
	done
}

# initrd ROOT FILE: mounts the disk and starts what is on it.
initrd() {
	local tree=$work/initrd number=10 module line
	mkdir -p "$tree"/{bin,lib,proc,sys,dev,root}
	cp "$1/bin/busybox" "$tree/bin/"
	for module in "${modules[@]}"; do
		modprobe -d "$1" -S "$(kernel_of "$1")" --show-depends "$module"
	done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >"$work/order"
	while read -r line; do
		number=$((number + 1))
		case $line in
		*.xz) xz -dc "$line" >"$tree/lib/$number.ko" ;;
		*) cp "$line" "$tree/lib/$number.ko" ;;
		esac
	done <"$work/order"
	cat >"$tree/init" <<-'SH'
		#!/bin/busybox sh
		b=/bin/busybox
		$b mount -t devtmpfs dev /dev
		for module in /lib/*.ko; do $b insmod "$module"; done
		until [ -b /dev/vda ]; do $b usleep 10000; done
		$b mount -t ext4 /dev/vda /root
		$b mount --move /dev /root/dev
		exec $b switch_root /root /lib/systemd/systemd
	SH
	chmod 0755 "$tree/init"
	(cd "$tree" && find . | cpio --quiet -o -H newc | gzip -1) >"$2"
	rm -rf "$tree"
}

# start NUMBER: switches the machine on for the boot of that number. What it prints is in console.NUMBER.
start() {
	local emulator=(qemu-system-x86_64 -machine q35 -cpu max) console=ttyS0
	[[ $arch == amd64 ]] || emulator=(qemu-system-aarch64 -machine virt -cpu max,pauth-impdef=on) console=ttyAMA0
	# It reaches nothing but one service at 10.0.2.100, which sends back what it gets.
	"${emulator[@]}" -accel tcg,thread=multi -smp 2 -m 1536 -nodefaults -display none -no-reboot \
		-kernel "$work/kernel" -initrd "$work/initrd.gz" -append "console=$console quiet panic=-1 systemd.getty_auto=0 machine.boot=$1" \
		-drive "file=$work/disk,if=virtio,format=raw,cache=writeback" -device virtio-rng-pci \
		-netdev user,id=n,restrict=on,guestfwd=tcp:10.0.2.100:7-cmd:cat -device virtio-net-pci,netdev=n \
		-chardev "socket,id=shell,path=${SHELL_SOCKET:-$work/shell},server=on,wait=off" -device virtio-serial -device virtconsole,chardev=shell \
		-serial "file:$work/console.$1" "${flags[@]}" &
	qemu=$!
}

# follow NUMBER LIMIT: shows what inside.sh prints, until its last line or the end of the machine.
follow() {
	local deadline=$((SECONDS + $2)) shown=0 lines
	while :; do
		sed -n 's/^machine: //p' "$work/console.$1" 2>/dev/null | tr -d '\r' >"$work/lines"
		lines=$(wc -l <"$work/lines")
		tail -n +"$((shown + 1))" "$work/lines" | sed "s/^/  $name: /"
		shown=$lines
		case $(tail -n 1 "$work/lines") in
		"boot $1 is over") return 0 ;;
		failed*) break ;;
		esac
		kill -0 "$qemu" 2>/dev/null || break
		((SECONDS < deadline)) || { say "$name: not over after $2 s"; break; }
		sleep 1
	done
	tail -n 40 "$work/console.$1" >&2
	return 1
}

# leave_on waits for the end of a machine with a shell.
leave_on() {
	[[ -n ${SHELL_SOCKET:-} ]] || return 0
	say "$name: is on: socat - $SHELL_SOCKET"
	wait "$qemu" || true
}

cut_power() {
	say "$name: the power is cut"
	kill -9 "$qemu"
	wait "$qemu" 2>/dev/null || true
}

run() {
	local name=$1 suite=${1%-*} result=0
	arch=${1##*-}
	rm -rf "$work/root"
	debian "$suite" "$arch" "$work/root"
	programs "$work/root"
	settings "$work/root"
	initrd "$work/root" "$work/initrd.gz"
	cp "$work"/root/boot/vmlinuz-* "$work/kernel"
	rm -f "$work/disk"
	mkfs.ext4 -q -d "$work/root" "$work/disk" 3G
	rm -rf "$work/root"
	say "$name: boots"
	start 1
	follow 1 1800 || { leave_on; die "$name: the first boot failed"; }
	cut_power
	start 2
	follow 2 1800 || result=1
	if ((result == 0)); then
		cut_power
		start 3
		follow 3 1800 || result=1
	fi
	leave_on
	kill -9 "$qemu" 2>/dev/null || true
	wait "$qemu" 2>/dev/null || true
	((result == 0)) || die "$name: a boot after a loss of power failed"
	say "$name: passed"
}

[[ $EUID -eq 0 ]] || die "run this as root: the disk of a machine has files of several users"
command -v apt-get >/dev/null || die "Debian's packages are needed, and this machine has no apt"
install_missing
(($#)) || set -- bookworm-amd64 trixie-amd64 bookworm-arm64
for machine; do
	[[ $machine =~ ^[a-z]+-(amd64|arm64)$ ]] || die "no machine $machine: SUITE-amd64 or SUITE-arm64, e.g. bookworm-arm64"
	run "$machine"
done

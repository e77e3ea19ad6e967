#!/bin/sh
# Installs the release that this file is part of, or removes what it has installed. --help says how. It needs a POSIX shell and the tools that
# every Linux has: no network, no compiler.
#
# PREFIX/share/sandbox/installed lists what was installed: files, and with a slash at their ends the folders that were made. A file that exists
# and is not in that list belongs to another program, and is never replaced.
set -eu
umask 022
export LC_ALL=C

usage() {
	cat <<'TEXT'
Usage: install.sh [FLAG...]

Installs the programs, the images, the manual pages, the completion of shells,
the systemd unit, the Helm chart and the Compose file of this release. It says
what it will do, and asks before it does it. Over another version, newer or
older, it replaces that; a service that runs goes on with its old programs until
it is restarted, and so do its sandboxes.

  --prefix DIR   where the files are used; /usr/local if not given
  --destdir DIR  folder that stands for /, to make a package of the files
  --start        also write a configuration, unless there is one, and enable and
                 start the service with systemd
  --uninstall    remove what was installed below the prefix; configuration and
                 data stay
  --purge        --uninstall, and remove /etc/sandbox and /var/lib/sandbox-server
  --yes          ask nothing; needed where standard input is no terminal
  --help         print this

Exit codes: 0 done, 1 failure, 2 wrong command line, 3 the answer was no.
TEXT
}

configuration=/etc/sandbox
data=/var/lib/sandbox-server
programs='sandbox sandbox-server sandbox-keeper sandbox-ingress sandbox-controller'

say() { printf 'install: %s\n' "$*"; }
die() { printf 'install: %s\n' "$*" >&2; exit 1; }
wrong() { printf 'install: %s; --help says what there is\n' "$*" >&2; exit 2; }

# absolute NAME VALUE: prints the value without slashes at its end.
absolute() {
	case $2 in
	*'
'*) wrong "$1 must have no line break" ;;
	/*) printf '%s\n' "$2" | sed 's|//*$||' ;;
	*) wrong "$1 must be an absolute path, not \"$2\"" ;;
	esac
}

# running prints the processes whose program is that file of the prefix, also one that was replaced since.
running() {
	for link in /proc/[0-9]*/exe; do
		program=$(readlink "$link" 2>/dev/null) || continue
		case $program in
		"$prefix/bin/$1" | "$prefix/bin/$1 (deleted)")
			process=${link#/proc/}
			printf '%s\n' "${process%/exe}"
			;;
		esac
	done
}

# contents writes the names of the files that are installed as they are in the archive, and what is installed in all.
contents() {
	(cd "$here" && find lib share -type f) | sort >"$work/contents"
	{
		for name in $programs; do printf '%s\n' "$prefix/bin/$name"; done
		while IFS= read -r name; do printf '%s\n' "$prefix/$name"; done <"$work/contents"
		printf '%s\n' "$list" "$prefix/share/sandbox/install.sh"
	} >"$work/files"
	# Nothing is listed yet where nothing is installed.
	if [ -e "$root$list" ]; then cat "$root$list"; fi >"$work/before"
}

# complete checks what can be checked before something changes.
complete() {
	for name in $programs release lib share; do
		[ -e "$here/$name" ] || die "$here/$name is missing: this is not the whole archive of a release"
	done
	version=$(sed -n 's/^version=//p' "$here/release")
	architecture=$(sed -n 's/^architecture=//p' "$here/release")
	if [ -z "$root" ]; then
		machine=$(uname -m)
		case $architecture/$machine in
		amd64/x86_64 | arm64/aarch64) ;;
		*) die "this release is for $architecture, and this machine is $machine: download the other archive" ;;
		esac
		"$here/sandbox" --help >/dev/null || die "$here/sandbox does not run here: the line above says why"
	fi
	existing=$root$prefix
	while [ ! -e "$existing" ]; do existing=$(dirname "$existing"); done
	if [ ! -d "$existing" ]; then die "$existing is no folder: choose another --prefix"; fi
	[ -w "$existing" ] || die "user $(id -un) may not write to $existing: run this as root, or choose another --prefix"
	contents
	while IFS= read -r file; do
		if [ -e "$root$file" ] || [ -L "$root$file" ]; then printf '%s\n' "$file"; fi
	done <"$work/files" >"$work/existing"
	foreign=$(grep -Fxv -f "$work/before" "$work/existing" | head -n 1)
	[ -z "$foreign" ] ||
		die "$root$foreign belongs to another program, it is not listed in $root$list: remove it, or choose another --prefix"
}

# confirm ACTION: asks whether to do it.
confirm() {
	[ -z "$yes" ] || return 0
	[ -t 0 ] || wrong "standard input is no terminal, where you could say yes: --yes $1 without a question"
	printf 'install: go on? [y/N] '
	read -r answer || answer=
	case $answer in
	y | Y | yes | Yes) ;;
	*) say "nothing was changed"; exit 3 ;;
	esac
}

# copy MODE FILE TARGET: the target, relative to the prefix, has the old content or the new one, whenever it is read. Without a FILE it is what
# standard input has.
copy() {
	new=$root$prefix/$3.sandbox-new
	rm -f "$new"
	if [ -n "$2" ]; then cat "$2"; else cat; fi >"$new"
	chmod "$1" "$new"
	mv -f "$new" "$root$prefix/$3"
	new=
}

# copy_contents copies the files of the archive. They belong to whoever runs this, whoever has unpacked it.
copy_contents() {
	(cd "$here" && xargs tar -cf - <"$work/contents") | tar -C "$root$prefix" -x -m -o -f -
	(cd "$root$prefix" && xargs chmod 0644 <"$work/contents")
	unit=lib/systemd/system/sandbox-server.service
	sed "s|/usr/local/|$(printf '%s' "$prefix" | sed 's|[\\&|]|\\&|g')/|g" "$here/$unit" | copy 0644 '' "$unit"
	for name in $programs; do copy 0755 "$here/$name" "bin/$name"; done
	copy 0755 "$here/install.sh" share/sandbox/install.sh
}

# remove LIST: removes the files that it has, and its folders that are empty then. What it lists is all of ours, and absolute.
remove() {
	sort -r "$1" >"$work/removed"
	while IFS= read -r entry; do
		case $entry in
		/*/) ;;
		/*) if [ -e "$root$entry" ] || [ -L "$root$entry" ]; then rm -f "$root$entry"; fi ;;
		esac
	done <"$work/removed"
	while IFS= read -r entry; do
		case $entry in
		/*/) if [ -d "$root$entry" ]; then rmdir "$root$entry" 2>/dev/null || true; fi ;; # others may have files in it
		esac
	done <"$work/removed"
}

install_all() {
	complete
	before=
	if [ -e "$root$prefix/share/sandbox/release" ]; then before=$(sed -n 's/^version=//p' "$root$prefix/share/sandbox/release"); fi
	say "version $version: $(wc -l <"$work/files" | tr -d ' ') files below $root$prefix${before:+, in place of version $before}"
	if [ -n "$start" ]; then
		[ -e "$configuration/sandbox.toml" ] || say "a configuration with a random key: $configuration/sandbox.toml"
		say "then: systemctl enable --now sandbox-server"
	elif [ -z "$root" ]; then
		say "no service is started or restarted, and no configuration is changed"
	fi
	confirm "installs"

	awk -F/ '{ path = ""; for (i = 2; i < NF; i++) { path = path "/" $i; print path "/" } }' "$work/files" | sort -u >"$work/folders"
	while IFS= read -r folder; do
		[ -d "$root$folder" ] || printf '%s\n' "$folder"
	done <"$work/folders" >"$work/list"
	grep -Fx -f "$work/folders" "$work/before" >>"$work/list" || true # made by an earlier installation
	cat "$work/files" >>"$work/list"
	grep -Fxv -f "$work/list" "$work/before" >"$work/stale" || true
	while IFS= read -r folder; do
		[ -d "$root$folder" ] || mkdir -p "$root$folder"
	done <"$work/folders"
	# The list first, with what goes at the end: what is interrupted can be removed, or installed again.
	cat "$work/list" "$work/stale" | copy 0644 '' "${list#"$prefix/"}"
	copy_contents
	remove "$work/stale"
	copy 0644 "$work/list" "${list#"$prefix/"}"
	say "version $version is installed"
	if [ -n "$root" ]; then return; fi
	if [ -n "$start" ]; then start_service; fi
	advise
}

# for_docker: there is a configuration for a Docker Engine, which has to be given the images; the local engine finds them.
for_docker() { [ -e "$configuration/sandbox.toml" ] && grep -q '^type = "docker"' "$configuration/sandbox.toml"; }

start_service() {
	if [ ! -e "$configuration/sandbox.toml" ]; then
		"$prefix/bin/sandbox-server" --config "$configuration/sandbox.toml" config init
	fi
	if for_docker; then
		for name in execd egress first; do docker load --input "$prefix/share/sandbox/images/$name.tar"; done
	fi
	[ -d /run/systemd/system ] || return 0
	systemctl daemon-reload
	case $prefix in
	/usr | /usr/local) systemctl enable --now sandbox-server ;;
	*) systemctl enable --now "$prefix/lib/systemd/system/sandbox-server.service" ;;
	esac
}

# advise says what is missing, and what to type next.
advise() {
	found=
	for name in docker runsc runc crun; do
		if command -v "$name" >/dev/null; then found=$name; fi
	done
	[ -n "$found" ] || say "no crun is here, which starts sandboxes: apt-get install crun, or the package of your distribution"
	case :$PATH: in
	*:"$prefix/bin":*) ;;
	*) say "$prefix/bin is not in your PATH: export PATH=$prefix/bin:\$PATH" ;;
	esac
	if [ -n "$before" ] && [ -n "$(running sandbox-server)" ]; then
		say "the service that runs has the programs of before, until: systemctl restart sandbox-server (sandboxes run on)"
		return
	fi
	say "next:"
	if [ -z "$start" ] && { for_docker || [ "$found" = docker ]; }; then
		say "  for image in $prefix/share/sandbox/images/*.tar; do docker load --input \$image; done"
	fi
	[ -e "$configuration/sandbox.toml" ] || say "  sandbox-server --config $configuration/sandbox.toml config init"
	if [ ! -d /run/systemd/system ]; then
		say "  sandbox-server --config $configuration/sandbox.toml    # and leave it running: there is no systemd here"
	elif [ -z "$start" ]; then
		case $prefix in
		/usr | /usr/local) say "  systemctl enable --now sandbox-server" ;;
		*) say "  systemctl enable --now $prefix/lib/systemd/system/sandbox-server.service" ;;
		esac
	fi
	say "  sed -n 's/^api_key = \"\\(.*\\)\"/\\1/p' $configuration/sandbox.toml | sandbox login http://127.0.0.1:8080"
	say "  sandbox run sandbox/first:dev -- echo hello"
}

uninstall_all() {
	[ -e "$root$list" ] || die "$root$list does not exist: nothing of this is installed below $root$prefix"
	if [ -z "$root" ]; then
		for name in sandbox-server sandbox-ingress sandbox-controller; do
			process=$(running "$name" | tr '\n' ' ')
			[ -z "$process" ] || die "$name runs, process ${process% }: stop it first, e.g. systemctl disable --now $name"
		done
		process=$(running sandbox-keeper | tr '\n' ' ')
		[ -z "$process" ] || die "sandboxes run, with sandbox-keeper, process ${process% }:" \
			"start the service, sandbox rm --all, and stop the service"
	fi
	cp "$root$list" "$work/list"
	say "$(grep -c -v '/$' "$work/list") files below $root$prefix will be removed"
	if [ "$action" = purge ]; then
		say "and $root$configuration, the configuration and the key, and $root$data, records, images and volumes"
	elif [ -z "$root" ]; then
		for folder in "$configuration" "$data"; do
			[ ! -e "$folder" ] || say "$folder stays; --purge removes it, too"
		done
	fi
	confirm "removes them"
	remove "$work/list"
	if [ "$action" = purge ]; then rm -rf "$root$configuration" "$root$data"; fi
	say "removed what was installed below $root$prefix"
}

main() {
	action=install prefix='' root='' yes='' start=''
	while [ $# -gt 0 ]; do
		case $1 in
		--prefix | --destdir)
			[ $# -gt 1 ] || wrong "$1 needs a folder"
			if [ "$1" = --prefix ]; then prefix=$(absolute --prefix "$2"); else root=$(absolute --destdir "$2"); fi || exit
			if [ "$1$prefix" = --prefix ]; then wrong "--prefix must be a folder other than /"; fi
			shift
			;;
		--uninstall | --purge) action=${1#--} ;;
		--start) start=1 ;;
		--yes) yes=1 ;;
		--help) usage; exit ;;
		*) wrong "there is no \"$1\"" ;;
		esac
		shift
	done
	if [ -n "$start" ] && [ "$root$action" != install ]; then wrong "--start goes with an installation on this machine alone"; fi
	here=$(cd "$(dirname "$0")" && pwd)
	# The copy of this file that is installed removes the installation that it belongs to.
	if [ -z "$prefix" ]; then
		case $here in
		?*/share/sandbox) prefix=${here%/share/sandbox} ;;
		*) prefix=/usr/local ;;
		esac
	fi
	list=$prefix/share/sandbox/installed
	work=$(mktemp -d)
	new=
	# shellcheck disable=SC2154 # status is set in the trap
	trap 'status=$?; rm -rf "$work"; [ -z "$new" ] || rm -f "$new"; exit "$status"' EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM
	if [ "$action" = install ]; then install_all; else uninstall_all; fi
}

# The last line, and not before everything was read: an uninstallation removes this file.
main "$@"

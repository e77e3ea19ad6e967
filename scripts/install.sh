#!/usr/bin/env bash
# Installs what a host needs, or removes it again. Usage: scripts/install.sh install|uninstall. Called by `make install` and
# `make uninstall`. It starts, stops and enables no service, and writes no configuration.
# PREFIX (/usr/local) is where the files are used, DESTDIR (empty) a folder that stands for / while a package is made.
# PROGRAMS is a folder with compiled programs; without it they are compiled, and their version is Git's.
# What was installed is listed in PREFIX/share/sandbox/installed: files, and with a slash at their ends the folders that were made.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."
umask 022

prefix=${PREFIX:-/usr/local}
prefix=${prefix%/}
root=${DESTDIR:-}
root=${root%/}
list=$prefix/share/sandbox/installed

say() { printf 'install: %s\n' "$*"; }
die() { printf 'install: %s\n' "$*" >&2; exit 1; }

# stage MODE FILE TARGET: puts the file, - for standard input, into the tree that is installed. TARGET is relative to PREFIX.
stage() {
	mkdir -p "$(dirname "$tree$prefix/$3")"
	if [[ $2 == - ]]; then cat; else cat "$2"; fi >"$tree$prefix/$3"
	chmod "$1" "$tree$prefix/$3"
}

install_all() {
	local work tree programs=${PROGRAMS:-} name unit page file entries=()
	work=$(mktemp -d)
	# shellcheck disable=SC2064 # the value of today: the variable is local
	trap "rm -rf '$work'" EXIT
	tree=$work/tree

	if [[ -z $programs ]]; then
		programs=$work/programs
		CGO_ENABLED=0 go build -trimpath -buildvcs=auto -gcflags=all=-dwarf=false -ldflags '-s -w' -o "$programs/" ./clients/cmd/sandbox ./server/cmd/...
	fi
	for name in sandbox sandbox-server sandbox-keeper sandbox-ingress sandbox-controller; do
		stage 0755 "$programs/$name" "bin/$name"
	done
	"$programs/sandbox" docs "$work/man"
	for page in "$work"/man/*.1; do
		stage 0644 "$page" "share/man/man1/${page##*/}"
	done
	"$programs/sandbox" completion bash | stage 0644 - share/bash-completion/completions/sandbox
	"$programs/sandbox" completion zsh | stage 0644 - share/zsh/site-functions/_sandbox
	"$programs/sandbox" completion fish | stage 0644 - share/fish/vendor_completions.d/sandbox.fish
	unit=$(<deploy/systemd/sandbox-server.service)
	stage 0644 - lib/systemd/system/sandbox-server.service <<<"${unit//\/usr\/local\//"$prefix/"}"
	stage 0644 /dev/null share/sandbox/installed

	# Of an older version nothing stays that this one does not have.
	[[ ! -e $root$list ]] || uninstall_all
	mapfile -t entries < <(cd "$tree" && find . -mindepth 1 -type d -printf '/%P/\n' | sort)
	for name in "${entries[@]}"; do
		[[ -d $root$name ]] || printf '%s\n' "$name"
	done >"$work/list"
	mapfile -t entries < <(cd "$tree" && find . -type f -printf '/%P\n' | sort)
	printf '%s\n' "${entries[@]}" >>"$work/list"
	# The list first: what is interrupted can be removed.
	mkdir -p "$(dirname "$root$list")"
	install -m 0644 "$work/list" "$root$list"
	for file in "${entries[@]}"; do
		[[ $file != "$list" ]] || continue
		mkdir -p "$(dirname "$root$file")"
		install -m "$(stat -c %a "$tree$file")" "$tree$file" "$root$file"
	done
	say "installed ${#entries[@]} files below $root$prefix"
}

uninstall_all() {
	local entries=() i
	[[ -e $root$list ]] || die "$root$list does not exist: nothing of this is installed below $root$prefix"
	mapfile -t entries <"$root$list"
	for ((i = ${#entries[@]} - 1; i >= 0; i--)); do
		if [[ ${entries[i]} != */ ]]; then
			rm -f "$root${entries[i]}"
		elif [[ -d $root${entries[i]} ]]; then
			rmdir --ignore-fail-on-non-empty "$root${entries[i]}"
		fi
	done
}

[[ $prefix == /* && $prefix != *$'\n'* ]] || die "PREFIX must be an absolute path other than /, not \"${PREFIX:-}\""
[[ -z $root || $root == /* ]] || die "DESTDIR must be an absolute path, not \"$DESTDIR\""
case ${1:-} in
install) install_all ;;
uninstall)
	uninstall_all
	say "removed what was installed below $root$prefix"
	;;
*) die "usage: scripts/install.sh install|uninstall" ;;
esac

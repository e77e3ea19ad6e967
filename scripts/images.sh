#!/usr/bin/env bash
# Builds the images sandbox/NAME:dev. Usage: scripts/images.sh [--archives] [NAME...], of execd, egress, task-executor, busybox, base, server, controller,
# ingress, python and code-interpreter; by default the first five.
#
# execd holds the programs that are put into every sandbox, egress the sidecar that stands beside one, task-executor what runs tasks in a
# pod. busybox and base are small images to make sandboxes from: built from deploy/*.Dockerfile, or, where no registry can be reached, from
# Debian packages. code-interpreter is base with Jupyter and its kernels; it takes minutes, so it is built only when asked for, as
# `make test-all` does.
# server, controller and ingress are what deploy/helm installs. python is base with a kernel for Python alone.
# An image that is up to date is left alone; what took long to make is kept in $SANDBOX_CACHE.
#
# --archives needs no Docker Engine: it makes the files $SANDBOX_CACHE/archives/NAME.tar, of execd, egress, task-executor, first, busybox, base,
# python and host, which the local engine and `docker load` read. code-interpreter is saved there from a Docker Engine that has it. first is a
# root directory without a program, which a release has; host is base with what the local engine needs, and
# with what Debian has for packages of Python.
# PROGRAMS is the folder of the programs (bin), and GOARCH what they were compiled for.
set -euo pipefail
shopt -s inherit_errexit # a failure inside $(...) counts too
umask 022 # folders get their mode from it, and any user of a sandbox reads them
cd "$(dirname "$0")/.."

host=${DOCKER_HOST:-unix:///var/run/docker.sock}
cache=${SANDBOX_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sandbox}
bin=${PROGRAMS:-bin}
label=sandbox.internal/recipe
path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { printf 'images: %s\n' "$*"; }
die() { printf 'images: %s\n' "$@" >&2; exit 1; }
docker() { command docker --host "$host" "$@"; }

# up_to_date NAME RECIPE: the image is there and was made by this recipe.
up_to_date() {
	if [[ -n $archives ]]; then
		[[ -s $archives/$1.tar && $(cat "$archives/$1.recipe" 2>/dev/null) == "$2" ]]
		return
	fi
	[[ $(docker image inspect --format "{{index .Config.Labels \"$label\"}}" "sandbox/$1:dev" 2>/dev/null) == "$2" ]]
}

# recipe FILE...: one hash over what decides how the image turns out.
recipe() { cat "$@" | sha256sum | cut -c1-16; }

# pack FOLDER: an archive whose bytes depend on the folder's content alone.
pack() { tar --sort=name --mtime=@0 --numeric-owner -C "$1" -c .; }

# pack_ours FOLDER: pack of files that belong to root, whoever runs this.
pack_ours() { tar --sort=name --mtime=@0 --numeric-owner --owner=0 --group=0 -C "$1" -c .; }

# import NAME RECIPE [CHANGE...]: makes the image of the archive on standard input.
import() {
	local changes=(-c "LABEL $label=$2") change
	for change in "${@:3}"; do changes+=(-c "$change"); done
	docker import "${changes[@]}" - "sandbox/$1:dev" >/dev/null
}

# save NAME RECIPE [CHANGE...]: makes an archive of the image, in the form of `docker save`, as import makes the image.
save() {
	local folder=$work/$1.image id settings='' variables='' change
	mkdir -p "$folder" "$archives"
	cat >"$folder/layer.tar"
	id=$(sha256sum <"$folder/layer.tar" | cut -c1-64)
	for change in "${@:3}"; do
		case $change in
		ENTRYPOINT\ *) settings+="\"Entrypoint\":${change#* }," ;;
		CMD\ *) settings+="\"Cmd\":${change#* }," ;;
		ENV\ *) variables+=",\"${change#* }\"" ;;
		EXPOSE\ *) settings+="\"ExposedPorts\":{\"${change#* }/tcp\":{}}," ;;
		*) die "no archive can have: $change" ;;
		esac
	done
	[[ -z $variables ]] || settings+="\"Env\":[${variables#,}],"
	printf '{"architecture":"%s","os":"linux","config":{%s"Labels":{"%s":"%s"}},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
		"$(go env GOARCH)" "$settings" "$label" "$2" "$id" >"$folder/config.json"
	printf '[{"Config":"config.json","RepoTags":["sandbox/%s:dev"],"Layers":["layer.tar"]}]' "$1" >"$folder/manifest.json"
	pack_ours "$folder" >"$archives/$1.tar.$$"
	mv "$archives/$1.tar.$$" "$archives/$1.tar"
	printf '%s' "$2" >"$archives/$1.recipe"
}

build_execd() {
	[[ -x $bin/execd && -x $bin/execd-init ]] || die "$bin/execd or $bin/execd-init is missing: make build"
	install -d -m 0755 "$work/execd/opt/sandbox"
	install -m 0755 "$bin/execd" "$bin/execd-init" "$work/execd/opt/sandbox/"
	pack_ours "$work/execd" | import execd "$1" 'ENTRYPOINT ["/opt/sandbox/execd"]'
}

build_egress() {
	[[ -x $bin/egress && -x $bin/egress-init ]] || die "$bin/egress or $bin/egress-init is missing: make build"
	install -d -m 0755 "$work/egress/opt/sandbox"
	install -m 0755 "$bin/egress" "$bin/egress-init" "$work/egress/opt/sandbox/"
	pack_ours "$work/egress" | import egress "$1" 'ENTRYPOINT ["/opt/sandbox/egress-init", "/opt/sandbox/egress"]' 'EXPOSE 18080'
}

build_task-executor() {
	[[ -x $bin/task-executor && -x $bin/task-executor-init ]] || die "$bin/task-executor or $bin/task-executor-init is missing: make build"
	install -d -m 0755 "$work/task-executor/opt/sandbox"
	install -m 0755 "$bin/task-executor" "$bin/task-executor-init" "$work/task-executor/opt/sandbox/"
	pack_ours "$work/task-executor" | import task-executor "$1" \
		'ENTRYPOINT ["/opt/sandbox/task-executor-init", "/opt/sandbox/task-executor"]' 'EXPOSE 5758'
}

# build_first makes an image with the folders and the two files that programs expect; what runs in it are the commands of execd's own shell.
build_first() {
	mkdir -p "$work"/first/{bin,etc,proc,root,sys,dev,tmp,var}
	chmod 0700 "$work/first/root"
	chmod 1777 "$work/first/tmp"
	echo 'root:x:0:0:root:/root:/bin/sh' >"$work/first/etc/passwd"
	echo 'root:x:0:' >"$work/first/etc/group"
	pack_ours "$work/first" | import first "$1" "ENV PATH=$path"
}

# build_program NAME RECIPE CHANGE...: an image that holds bin/sandbox-NAME alone, and runs it as nobody.
build_program() {
	install -d -m 0755 "$work/$1"
	install -m 0755 "bin/sandbox-$1" "$work/$1/sandbox-$1"
	pack "$work/$1" | import "$1" "$2" "ENTRYPOINT [\"/sandbox-$1\"]" 'USER 65532:65532' "${@:3}"
}
build_server() { build_program server "$1" 'EXPOSE 8080'; }
build_controller() { build_program controller "$1" 'EXPOSE 8080 8081'; }
build_ingress() { build_program ingress "$1" 'EXPOSE 8081 9081'; }

# from_registry NAME RECIPE IMAGE SECONDS: builds deploy/NAME.Dockerfile, if IMAGE is here or can be pulled in time.
from_registry() {
	docker image inspect "$3" >/dev/null 2>&1 ||
		timeout "$4" docker --host "$host" pull --quiet "$3" >"$work/pull.log" 2>&1 || {
		say "$1: no $3 ($(tail -n 1 "$work/pull.log" | cut -c1-160)): building it from Debian packages"
		return 1
	}
	docker build --quiet --label "$label=$2" --tag "sandbox/$1:dev" --file "deploy/$1.Dockerfile" deploy >"$work/build.log" 2>&1 || {
		tail -n 20 "$work/build.log" >&2
		say "$1: deploy/$1.Dockerfile did not build: building it from Debian packages"
		return 1
	}
}

# makes NAME: what this script does to make the content of an image from Debian packages.
makes() {
	declare -f "make_$1" need_debian own_mirror pack
	[[ $1 != python && $1 != host ]] || declare -f make_base install_inside
}

# from_cache NAME: prints the name of a cached archive of what make_NAME FOLDER makes, which it does first if need be.
from_cache() {
	local archive
	archive=$cache/$1-$(recipe <(makes "$1")).tar
	if [[ ! -s $archive ]]; then
		mkdir -p "$cache" "$work/$1"
		"make_$1" "$work/$1" >&2
		pack "$work/$1" >"$archive.$$"
		rm -f "$cache/$1"-*.tar
		mv "$archive.$$" "$archive" # complete, or not there
	fi
	printf '%s' "$archive"
}

# need_debian PACKAGE: apt is there and has the package.
need_debian() {
	command -v apt-get >/dev/null || die "no registry can be reached, and this machine has no apt to build from instead"
	apt-cache show "$1" >/dev/null 2>&1 || apt-get update -qq
}

build_busybox() {
	if from_registry busybox "$1" busybox:stable-musl 30; then return; fi
	local archive
	archive=$(from_cache busybox)
	import busybox "$1" "ENV PATH=$path" 'CMD ["sh"]' <"$archive"
}

make_busybox() {
	need_debian busybox-static
	local applet
	mkdir -p "$work/package" "$1"/{bin,etc,proc,root,sys,dev,tmp,var,usr}
	chmod 1777 "$1/tmp"
	(cd "$work" && apt-get download -qq -o APT::Sandbox::User=root busybox-static && dpkg-deb -x busybox-static_*.deb package)
	install -m 0755 "$(find "$work/package" -path '*/bin/busybox' -type f)" "$1/bin/busybox"
	for applet in $("$1/bin/busybox" --list); do
		[[ $applet == busybox ]] || ln -s busybox "$1/bin/$applet"
	done
	ln -s ../bin "$1/usr/bin"
	echo 'root:x:0:0:root:/root:/bin/sh' >"$1/etc/passwd"
	echo 'root:x:0:' >"$1/etc/group"
}

build_base() {
	if from_registry base "$1" debian:bookworm-slim 120; then return; fi
	local archive
	archive=$(from_cache base)
	import base "$1" "ENV PATH=$path" 'CMD ["bash"]' <"$archive"
}

make_base() {
	need_debian debootstrap
	[[ $EUID -eq 0 ]] || die "no registry can be reached, and debootstrap needs root"
	command -v debootstrap >/dev/null ||
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 debootstrap >/dev/null
	local suite mirror
	read -r suite mirror < <(own_mirror)
	debootstrap --variant=minbase --include=ca-certificates,curl,python3 "$suite" "$1" ${mirror:+"$mirror"} >"$work/debootstrap.log" ||
		{ tail -n 20 "$work/debootstrap.log"; die "debootstrap failed"; }
	rm -rf "$1"/var/cache/apt/*.bin "$1"/var/cache/apt/archives/*.deb "$1"/var/lib/apt/lists/* "$1"/var/log/* \
		"$1"/usr/share/{doc,man,info,locale}/* "$1"/etc/{hostname,resolv.conf} "${1:?}"/dev/*
}

# own_mirror prints the suite and mirror that this machine's apt uses, or a suite alone, for debootstrap's own mirror.
own_mirror() {
	# shellcheck disable=SC2016 # the fields are apt's, not the shell's
	apt-get indextargets --format '$(ORIGIN) $(COMPONENT) $(REPO_URI) $(CODENAME)' 'Created-By: Packages' |
		awk '($1 == "Debian" || $1 == "Ubuntu") && $2 == "main" && $4 !~ /-/ { print $4, $3; found = 1; exit }
			END { if (!found) print "bookworm" }'
}

build_python() {
	if [[ -n $archives ]]; then
		local archive
		archive=$(from_cache python)
		import python "$1" "ENV PATH=$path" ENV\ {LANG=C.UTF-8,PYDEVD_DISABLE_FILE_VALIDATION=1} 'CMD ["bash"]' <"$archive"
		return
	fi
	docker build --quiet --label "$label=$1" --tag sandbox/python:dev - <deploy/python.Dockerfile >"$work/build.log" 2>&1 ||
		{ tail -n 40 "$work/build.log" >&2; die "deploy/python.Dockerfile did not build"; }
}

make_python() {
	local base
	base=$(from_cache base)
	[[ $EUID -eq 0 ]] || die "a change of the root folder needs root"
	tar --numeric-owner -C "$1" -xf "$base"
	export -f install_inside
	unshare --mount bash -euc 'install_inside "$@"' images "$1" python3-ipykernel >"$work/install.log" 2>&1 ||
		{ tail -n 40 "$work/install.log"; die "the packages of python could not be installed"; }
	rm -rf "$1"/var/cache/apt/*.bin "$1"/var/cache/apt/archives/*.deb "$1"/var/lib/apt/lists/* "$1"/var/log/* \
		"$1"/etc/resolv.conf "${1:?}"/dev/*
}

build_host() {
	local archive
	archive=$(from_cache host)
	import host "$1" "ENV PATH=$path" 'CMD ["bash"]' <"$archive"
}

make_host() {
	local base
	base=$(from_cache base)
	[[ $EUID -eq 0 ]] || die "a change of the root folder needs root"
	tar --numeric-owner -C "$1" -xf "$base"
	export -f install_inside
	unshare --mount bash -euc 'install_inside "$@"' images "$1" crun nftables iproute2 python3-venv >"$work/install.log" 2>&1 ||
		{ tail -n 40 "$work/install.log"; die "the packages of host could not be installed"; }
	rm -rf "$1"/var/cache/apt/*.bin "$1"/var/cache/apt/archives/*.deb "$1"/var/lib/apt/lists/* "$1"/var/log/* \
		"$1"/etc/resolv.conf "${1:?}"/dev/*
}

# install_inside FOLDER PACKAGE...: installs packages in the Debian of a folder, from the mirror of its sources and by way of the proxies of this
# machine's apt. In a mount namespace of its own: what packages' scripts expect of /dev and /proc goes with that.
install_inside() {
	local node proxies=()
	for node in null zero random urandom; do
		touch "$1/dev/$node"
		mount --bind "/dev/$node" "$1/dev/$node"
	done
	mount -t proc proc "$1/proc"
	cp /etc/resolv.conf "$1/etc/resolv.conf"
	mapfile -t proxies < <(apt-config dump | sed -nE 's/^(Acquire::https?::(.*::)?Proxy) "(.+)";$/-o\n\1=\3/Ip')
	chroot "$1" apt-get "${proxies[@]}" update -qq
	DEBIAN_FRONTEND=noninteractive chroot "$1" apt-get "${proxies[@]}" install -y -qq --no-install-recommends "${@:2}"
}

# build_code-interpreter gives the tag only to an image whose kernels all work.
build_code-interpreter() {
	local image
	scripts/code-interpreter.sh "$work/kernels"
	docker build --quiet --label "$label=$1" --file deploy/code-interpreter.Dockerfile "$work/kernels" >"$work/build.log" 2>&1 ||
		{ tail -n 40 "$work/build.log" >&2; die "deploy/code-interpreter.Dockerfile did not build"; }
	image=$(tail -n 1 "$work/build.log")
	docker run --rm --init "$image" python3 /usr/local/lib/sandbox-kernels/check.py 2>"$work/check.log" ||
		{ tail -n 40 "$work/check.log" >&2; die "a kernel of code-interpreter does not work (image $image)"; }
	docker tag "$image" sandbox/code-interpreter:dev
}

# build NAME FILE...: the files are what the image is made of.
build() {
	local began=$SECONDS hash
	hash=$(recipe "${@:2}")
	if up_to_date "$1" "$hash"; then
		say "sandbox/$1:dev is up to date"
		return
	fi
	local old=
	[[ -n $archives ]] || old=$(docker image inspect --format '{{.Id}}' "sandbox/$1:dev" 2>/dev/null || true)
	"build_$1" "$hash"
	# What the tag named before is not used any more; an image that a container still uses stays.
	[[ -z $old ]] || docker image rm "$old" >/dev/null 2>&1 || true
	say "sandbox/$1:dev built in $((SECONDS - began)) s"
}

# save_built NAME: the archive of an image that the Docker Engine has.
save_built() {
	local id
	id=$(docker image inspect --format '{{.Id}}' "sandbox/$1:dev") || die "no image sandbox/$1:dev at $host: scripts/images.sh $1"
	if up_to_date "$1" "$id"; then
		say "the archive of sandbox/$1:dev is up to date"
		return
	fi
	mkdir -p "$archives"
	docker save --output "$archives/$1.tar.$$" "sandbox/$1:dev"
	mv "$archives/$1.tar.$$" "$archives/$1.tar"
	printf '%s' "$id" >"$archives/$1.recipe"
	say "the archive of sandbox/$1:dev is made"
}

# how NAME: what this script does to make an image. Changing something else in it rebuilds no image.
how() {
	declare -f "build_$1" "make_$1" from_registry from_cache pack import own_mirror
	[[ $1 != python && $1 != host ]] || makes "$1"
}

archives=
if [[ ${1:-} == --archives ]]; then
	archives=$cache/archives
	shift
	import() { save "$@"; }
	from_registry() { return 1; } # there is no engine to pull and to build with
	[[ $# -gt 0 ]] || set -- execd egress busybox base
	for name; do
		case $name in
		execd | egress | task-executor | first | busybox | base | python | host) ;;
		code-interpreter) save_built "$name" ;;
		*) die "no archive of $name: execd, egress, task-executor, first, busybox, base, python, host and code-interpreter are there" ;;
		esac
	done
else
	docker version >/dev/null 2>&1 || die "no Docker Engine at $host: make engine"
	[[ $# -gt 0 ]] || set -- execd egress task-executor busybox base
fi
for name; do
	[[ -z $archives || $name != code-interpreter ]] || continue # saved already
	case $name in
	execd) build execd "$bin/execd" "$bin/execd-init" <(declare -f build_execd pack_ours import) ;;
	egress) build egress "$bin/egress" "$bin/egress-init" <(declare -f build_egress pack_ours import) ;;
	task-executor) build task-executor "$bin/task-executor" "$bin/task-executor-init" <(declare -f build_task-executor pack_ours import) ;;
	server | controller | ingress)
		[[ -x bin/sandbox-$name ]] || die "bin/sandbox-$name is missing: make build"
		build "$name" "bin/sandbox-$name" <(declare -f "build_$name" build_program pack import)
		;;
	first) build first <(declare -f build_first pack_ours import) ;;
	host)
		[[ -n $archives ]] || die "host is an archive: scripts/images.sh --archives host"
		build host deploy/base.Dockerfile <(how host)
		;;
	busybox | base) build "$name" "deploy/$name.Dockerfile" <(how "$name") ;;
	python)
		if [[ -n $archives ]]; then
			build python deploy/{base,python}.Dockerfile <(how python)
			continue
		fi
		build base deploy/base.Dockerfile <(how base)
		build python deploy/python.Dockerfile <(docker image inspect --format '{{.Id}}' sandbox/base:dev) <(declare -f build_python)
		;;
	code-interpreter)
		build base deploy/base.Dockerfile <(how base)
		# The base image and the Go toolchain are part of it.
		{ docker image inspect --format '{{.Id}}' sandbox/base:dev && go version; } >"$work/parts"
		find deploy/kernels -type f -not -path '*/__pycache__/*' | sort >"$work/files"
		mapfile -t files <"$work/files"
		build code-interpreter "$work/parts" deploy/code-interpreter.Dockerfile scripts/code-interpreter.sh \
			runtime/jupyter/ipython_kernel_config.py "${files[@]}"
		;;
	*) die "no image $name: execd, egress, task-executor, busybox, base, server, controller, ingress, python and code-interpreter are there" ;;
	esac
done

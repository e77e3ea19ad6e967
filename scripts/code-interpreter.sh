#!/usr/bin/env bash
# Puts together what deploy/code-interpreter.Dockerfile needs, in the folder given: bin/ (deno, gonb, goimports), go/, kernels/
# and ipython_kernel_config.py.
# Called by scripts/images.sh. npm and Go modules come through this machine's own npm and go, with their settings; what they fetched
# is kept in $SANDBOX_CACHE.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

deno_version=2.9.6
gonb_version=v0.11.3
tools_version=v0.38.0 # goimports
patches=1 # raised when patch_gonb changes

context=${1:?usage: scripts/code-interpreter.sh FOLDER}
cache=${SANDBOX_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sandbox}/kernels-$deno_version-$gonb_version-$patches-$tools_version

die() { printf 'code-interpreter: %s\n' "$@" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fetch_deno() {
	command -v npm >/dev/null || scripts/node.sh clients/typescript >&2
	npm install --prefix "$work/npm" --ignore-scripts --no-audit --no-fund --loglevel=error "deno@$deno_version" >&2
	# Its package for this platform has the program itself.
	install -m 0755 "$work"/npm/node_modules/@deno/linux-*/deno "$1/deno"
}

# patch_gonb puts GoNB's source into a folder, with a change that it has no setting for: the standard input of a cell's program is at its
# end. execd answers no requests for input, and a program that reads would wait for ever.
patch_gonb() {
	local source file=internal/jpyexec/jpyexec.go
	mkdir "$work/source"
	printf 'module source\ngo 1.24\n' >"$work/source/go.mod"
	source=$(cd "$work/source" && GOWORK=off go mod download -json "github.com/janpfeifer/gonb@$gonb_version" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
	cp -r "$source" "$1"
	chmod -R u+w "$1"
	sed -i 's|^\t// Start command\.$|\tif exec.stdinContent == nil {\n\t\t_ = exec.cmdStdin.Close()\n\t}\n&|' "$1/$file"
	cmp -s "$source/$file" "$1/$file" && die "GoNB $gonb_version has no place in $file for its change"
	return 0
}

# build_go_tools uses a module of its own: `go install PACKAGE@VERSION` wants lists of versions that not every proxy gives.
build_go_tools() {
	mkdir "$work/tools"
	patch_gonb "$work/gonb"
	cat >"$work/tools/go.mod" <<-MOD
		module kernels
		go 1.24
		require (
			github.com/janpfeifer/gonb $gonb_version
			golang.org/x/tools $tools_version
		)
		replace github.com/janpfeifer/gonb => ../gonb
	MOD
	(cd "$work/tools" && CGO_ENABLED=0 GOOS=linux GOWORK=off GOFLAGS="${GOFLAGS:-} -mod=mod" go build -trimpath -ldflags=-s -o "$1/" \
		github.com/janpfeifer/gonb golang.org/x/tools/cmd/goimports)
}

if [[ ! -d $cache ]]; then
	mkdir -p "$work/bin"
	fetch_deno "$work/bin"
	build_go_tools "$work/bin"
	mkdir -p "$(dirname "$cache")"
	cp -r "$work/bin" "$cache.$$"
	mv "$cache.$$" "$cache" # complete, or not there
fi

mkdir -p "$context"
cp -r "$cache" "$context/bin"
cp -r deploy/kernels "$context/kernels"
cp runtime/jupyter/ipython_kernel_config.py "$context/"
cp -r "$(go env GOROOT)" "$context/go"
chmod -R u+w "$context/go" # a toolchain in the module cache is read-only
# No program that uses the standard library needs its tests.
rm -rf "$context/go"/{.git,api,doc,misc,test}
find "$context/go/src" \( -name testdata -type d -o -name '*_test.go' \) -prune -exec rm -rf {} +

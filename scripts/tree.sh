#!/usr/bin/env bash
# Makes the folder that a release for Linux consists of: programs, images, pages, and deploy/install.sh, which installs it. Called by
# scripts/dist.sh and scripts/install.sh.
# Usage: scripts/tree.sh PROGRAMS TOOL VERSION ARCHITECTURE FOLDER
# PROGRAMS has the programs for that architecture, and TOOL is the program sandbox for this machine, which writes its own manual. Images are those
# of the programs that are there. The same arguments make the same files.
set -euo pipefail
shopt -s inherit_errexit
umask 022

programs=$(cd "$1" && pwd) tool=$(realpath "$2") version=$3 architecture=$4
mkdir -p "$5"
folder=$(cd "$5" && pwd)
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# put MODE TARGET FILE...: copies the files into the folder TARGET.
put() {
	mkdir -p "$folder/$2"
	install -m "$1" -t "$folder/$2" "${@:3}"
}

put 0755 . "$programs"/* deploy/install.sh
put 0644 . LICENSE README.md
put 0644 share/doc/sandbox LICENSE README.md
printf 'version=%s\narchitecture=%s\n' "$version" "$architecture" >"$folder/release"
put 0644 share/sandbox "$folder/release"

"$tool" docs "$work/man"
put 0644 share/man/man1 "$work"/man/*.1
mkdir -p "$folder"/share/{bash-completion/completions,zsh/site-functions,fish/vendor_completions.d}
"$tool" completion bash >"$folder/share/bash-completion/completions/sandbox"
"$tool" completion zsh >"$folder/share/zsh/site-functions/_sandbox"
"$tool" completion fish >"$folder/share/fish/vendor_completions.d/sandbox.fish"
put 0644 lib/systemd/system deploy/systemd/sandbox-server.service
put 0644 share/sandbox/compose deploy/compose/{README.md,compose.yaml,env.example,sandbox.toml}
put 0644 share/sandbox/helm/sandbox deploy/helm/sandbox/{Chart.yaml,values.yaml,values.schema.json,.helmignore}
put 0644 share/sandbox/helm/sandbox/templates deploy/helm/sandbox/templates/*
put 0644 share/sandbox/helm/sandbox/crds deploy/helm/sandbox/crds/*

images=(first)
for name in execd egress task-executor; do
	[[ ! -e $programs/$name ]] || images+=("$name")
done
PROGRAMS=$programs GOARCH=$architecture SANDBOX_CACHE=$work scripts/images.sh --archives "${images[@]}" >/dev/null
put 0644 share/sandbox/images "$work"/archives/*.tar

#!/usr/bin/env bash
# Makes sure that Podman is here, as a rival in the bench, where that can be done: as root on Debian. Elsewhere the bench goes without.
set -euo pipefail

if command -v podman >/dev/null || [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then exit 0; fi
printf 'podman: installing podman\n'
if ! { apt-get update -qq &&
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 podman >/dev/null; }; then
	printf 'podman: it cannot be installed: the bench goes without\n' >&2
fi

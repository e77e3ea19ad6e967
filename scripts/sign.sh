#!/usr/bin/env bash
# Signs a file in minisign's format: FILE.minisig. Called by scripts/dist.sh.
# Usage: scripts/sign.sh KEY FILE COMMENT. KEY is a secret key of minisign without a password, and COMMENT is signed, too. The signature has no time
# of its own: the same arguments make the same bytes. `minisign -Vm FILE -p PUBLICKEY` checks it.
set -euo pipefail

MINISIGN=aead.dev/minisign/cmd/minisign@v0.3.0

die() { printf 'sign: %s\n' "$*" >&2; exit 1; }

[[ -r $1 ]] || die "cannot read the key $1"
[[ -r $2 ]] || die "cannot read $2"
GOOS='' GOARCH='' GOFLAGS=-trimpath CGO_ENABLED=0 go run "$MINISIGN" -S -s "$1" -t "$3" -m "$2" </dev/null >/dev/null ||
	die "$2 was not signed: $1 must be a secret key of minisign without a password (minisign -G -W)"

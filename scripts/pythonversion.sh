#!/usr/bin/env bash
# Prints the version of a Python package for a version that the Go tool stamps. Usage: scripts/pythonversion.sh VERSION.
# Both order alike: v1.2.3-rc.1 is 1.2.3rc1, and the pseudo-version of a commit that has no tag, v1.2.4-0.20260102150405-0123456789ab, is
# 1.2.4.dev20260102150405+0123456789ab. What neither scheme has in common is an error.
set -euo pipefail

number='(0|[1-9][0-9]*)' # in both schemes
release="$number\\.$number\\.$number"
kind='(alpha|beta|rc)'
commit='([0-9]{14})-([0-9a-f]{12})'

if [[ ${1:-} =~ ^v($release)$ ]]; then
	printf '%s\n' "${BASH_REMATCH[1]}"
elif [[ ${1:-} =~ ^v($release)-$kind\.$number$ ]]; then
	letter=${BASH_REMATCH[5]}
	[[ $letter == rc ]] || letter=${letter:0:1}
	printf '%s%s%s\n' "${BASH_REMATCH[1]}" "$letter" "${BASH_REMATCH[6]}"
elif [[ ${1:-} =~ ^v($release)-(0\.)?$commit$ ]]; then # before the release that it names, which is no release
	printf '%s.dev%s+%s\n' "${BASH_REMATCH[1]}" "${BASH_REMATCH[6]}" "${BASH_REMATCH[7]}"
elif [[ ${1:-} =~ ^v($release)-$kind\.$number\.0\.$commit$ ]]; then # after that candidate
	letter=${BASH_REMATCH[5]}
	[[ $letter == rc ]] || letter=${letter:0:1}
	printf '%s%s%s.post%s+%s\n' "${BASH_REMATCH[1]}" "$letter" "${BASH_REMATCH[6]}" "${BASH_REMATCH[7]}" "${BASH_REMATCH[8]}"
else
	printf 'pythonversion: no version of a Python package for "%s"\n' "${1:-}" >&2
	exit 1
fi

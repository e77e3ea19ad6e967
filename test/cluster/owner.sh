#!/usr/bin/env bash
# Takes a cluster down when the process that it belongs to has ended, however it ended. Usage: owner.sh PID FOLDER. Started by up.sh.
set -euo pipefail
scripts=$(cd "$(dirname "$0")" && pwd)
tail --pid="$1" -f /dev/null
rm -f "${2%/}/pid/owner" # down.sh must not end the one who calls it
exec "$scripts/down.sh" "${2%/}"

#!/usr/bin/env bash
# Generates the types of clients/typescript from the contracts, into its sources or into the folder that is given.
set -euo pipefail
shopt -s inherit_errexit # a failure inside $(...) counts too
cd "$(dirname "$0")/.."

to=${1:-clients/typescript/src/gen}
packages=$(scripts/node.sh clients/typescript | tail -n 1)
for contract in lifecycle execd; do
	# Without the option, fields with a default would be required in requests.
	"$packages/node_modules/.bin/openapi-typescript" "openapi/$contract.yaml" --default-non-nullable false -o "$to/$contract.ts" >/dev/null
done

#!/bin/sh
# Keeps a sandbox of this image alive: clients of OpenSandbox start it as the entrypoint. execd starts the kernels, when they are first used.
# With arguments it runs them instead.
if [ $# -gt 0 ]; then
	exec "$@"
fi
exec sleep infinity

#!/bin/sh
# Stops the service when the package goes, not when another version comes.
set -eu
case $1 in
remove | 0) ;; # Debian; RPM
*) exit 0 ;;
esac
if [ -d /run/systemd/system ]; then systemctl disable --now sandbox-server; fi

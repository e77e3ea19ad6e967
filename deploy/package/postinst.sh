#!/bin/sh
# Makes the key. The service is not enabled and not started: it is root, and makes a network. One that runs gets the new programs; its sandboxes
# run on.
set -eu
key=/etc/sandbox/api.key
case $1 in
configure | 1 | 2) ;; # Debian; RPM: the first installation, an upgrade
*) exit 0 ;;
esac
if [ ! -e "$key" ]; then
	# Under another name first: what is interrupted must not leave half a key.
	(umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$key.new" && mv "$key.new" "$key")
	cat <<-TEXT
		To start the service, and to use it as root:
		  systemctl enable --now sandbox-server
		  sandbox login http://127.0.0.1:8080 <$key
		  sandbox run sandbox/first:dev -- echo hello
	TEXT
fi
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart sandbox-server
fi

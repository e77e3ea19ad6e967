#!/bin/sh
# Debian's purge removes the key, the records and the images, unless sandboxes run: their files are in there.
set -eu
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
[ "$1" = purge ] || exit 0
rm -f /etc/sandbox/api.key /etc/sandbox/api.key.new
rmdir /etc/sandbox 2>/dev/null || true
for link in /proc/[0-9]*/exe; do
	case $(readlink "$link" 2>/dev/null) in
	*/sandbox-server* | */sandbox-keeper*)
		echo "sandboxes or their service run: /var/lib/sandbox-server stays; remove it after a reboot" >&2
		exit 0
		;;
	esac
done
rm -rf /var/lib/sandbox-server

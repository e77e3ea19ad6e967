# The paths of install.sh where systemd runs. There is none here, but for a systemctl that writes down what it is asked for, and starts what the
# unit says. $1 is the folder of a release, $2 names the data of this run.
asked=/run/systemctl.log
mkdir -p /run/systemd/system /run/bin
PATH=/run/bin:$PATH
cat >/run/bin/systemctl <<'SYSTEMCTL'
#!/bin/bash
set -eu
printf '%s\n' "$*" >>/run/systemctl.log
[[ $1 == enable ]] || exit 0
unit=$3
[[ $unit == /* ]] || unit=/usr/local/lib/systemd/system/$unit.service
read -ra command < <(sed -n 's/^ExecStart=//p' "$unit")
"${command[@]}" >>/run/server.log 2>&1 </dev/null &
printf '%s\n' "$!" >/run/server.pid
SYSTEMCTL
chmod 0755 /run/bin/systemctl

# answers FILE: the service that systemctl has started takes the key of the file.
answers() {
	server=$(</run/server.pid)
	within 100 login "$1"
}

ended() { [[ ! -e /proc/$server ]]; }

# end stops that service, which is no child of this shell.
end() {
	kill "$server"
	within 100 ended
}

# A configuration that is there is used as it is.
does "$1/sandbox-server" --config /etc/sandbox/sandbox.toml config init
sed -i "s|^#data_dir = \"/var/lib/sandbox-server\"|data_dir = \"/var/lib/sandbox-server/$2\"|" /etc/sandbox/sandbox.toml
cp /etc/sandbox/sandbox.toml /run/before.toml
(umask 077 && sed -n 's/^api_key = "\(.*\)"/\1/p' /etc/sandbox/sandbox.toml >/run/key)

says "systemctl enable --now sandbox-server" "$1/install.sh" --yes
[[ ! -e $asked ]] || fail "without --start systemctl is asked for: $(<"$asked")"
says "then: systemctl enable --now sandbox-server" "$1/install.sh" --yes --start
[[ $(<"$asked") == $'daemon-reload\nenable --now sandbox-server' ]] || fail "systemctl is asked for: $(<"$asked")"
cmp /etc/sandbox/sandbox.toml /run/before.toml || fail "the configuration has changed"
answers /run/key
[[ $(readlink "/proc/$server/exe") == /usr/local/bin/sandbox-server ]] || fail "the unit starts another program"
says "hello from a sandbox" sandbox run sandbox/first:dev -- echo hello from a sandbox
says "systemctl restart sandbox-server" "$1/install.sh" --yes
refuses "systemctl disable --now sandbox-server" /usr/local/share/sandbox/install.sh --uninstall --yes
end
within 100 no_process sandbox-keeper
says "/etc/sandbox stays" /usr/local/share/sandbox/install.sh --uninstall --yes

# Another prefix: systemd does not look there, so the unit is given with its path.
rm "$asked"
PATH=/opt/sandbox/bin:$PATH
does "$1/install.sh" --yes --start --prefix /opt/sandbox
[[ $(<"$asked") == $'daemon-reload\nenable --now /opt/sandbox/lib/systemd/system/sandbox-server.service' ]] ||
	fail "systemctl is asked for: $(<"$asked")"
answers /run/key
[[ $(readlink "/proc/$server/exe") == /opt/sandbox/bin/sandbox-server ]] || fail "the unit starts another program"
says "hello from a sandbox" sandbox run sandbox/first:dev -- echo hello from a sandbox
end
within 100 no_process sandbox-keeper
says "removed what was installed" /opt/sandbox/share/sandbox/install.sh --purge --yes

# From the archive of a release to the first output, over a newer release and back, and away again. $1 and $2 are the folders of an older and a
# newer release, $3 names the data of this run: no other service on the machine has control groups of that name.
# survived: the sandbox runs, and has what was put there.
survived() {
	says "I am here" sandbox exec stays -- echo I am here
	rm -f /run/mark
	sandbox cp stays:/root/mark /run/mark
	cmp "$1/release" /run/mark || fail "the sandbox has lost a file"
}

began=$(date +%s%N)
refuses "standard input is no terminal" "$1/install.sh"
refuses "must be an absolute path" "$1/install.sh" --yes --prefix some/where
[[ ! -e /usr/local/bin/sandbox ]] || fail "a wrong command line has installed something"
echo other >/usr/local/bin/sandbox
refuses "/usr/local/bin/sandbox belongs to another program" "$1/install.sh" --yes
rm /usr/local/bin/sandbox
mkdir /run/partial
cp "$1/install.sh" /run/partial/
refuses "is not the whole archive" /run/partial/install.sh --yes
cp -as "$1" /run/foreign
rm /run/foreign/release
sed 's/^architecture=.*/architecture=vax/' "$1/release" >/run/foreign/release
refuses "this release is for vax" /run/foreign/install.sh --yes

says "version v1.0.0 is installed" "$1/install.sh" --yes --start
sed -i "s|^#data_dir = \"/var/lib/sandbox-server\"|data_dir = \"/var/lib/sandbox-server/$3\"|" /etc/sandbox/sandbox.toml
grep -q "^type = \"local\"" /etc/sandbox/sandbox.toml || fail "the configuration is not for the local engine"
grep -q "^archives = \[\]" /etc/sandbox/sandbox.toml || fail "the configuration names images"
(umask 077 && sed -n 's/^api_key = "\(.*\)"/\1/p' /etc/sandbox/sandbox.toml >/run/key)
start /run/key
says "hello from a sandbox" sandbox run sandbox/first:dev -- echo hello from a sandbox
printf 'first output %d ms after the first command\n' $((($(date +%s%N) - began) / 1000000))

sandbox create sandbox/first:dev --name stays >/dev/null
sandbox cp "$1/release" stays:/root/mark
[[ -e /usr/local/share/sandbox/old ]] || fail "the older release has no file that the newer one has not"
says "in place of version v1.0.0" "$2/install.sh" --yes
grep -q "systemctl restart sandbox-server" /run/command.log || fail "the upgrade does not say how the service gets the new programs"
[[ ! -e /usr/local/share/sandbox/old ]] || fail "a file of the older release is left"
cmp "$2/release" /usr/local/share/sandbox/release
survived "$1"
stop
start /run/key
survived "$1"
says "hello again" sandbox run sandbox/first:dev -- echo hello again

says "in place of version v1.1.0" "$1/install.sh" --yes
[[ -e /usr/local/share/sandbox/old ]] || fail "a file of the older release has not come back"
stop
start /run/key
survived "$1"

uninstall=/usr/local/share/sandbox/install.sh
refuses "sandbox-server runs, process $server" "$uninstall" --uninstall --yes
stop
refuses "sandboxes run, with sandbox-keeper" "$uninstall" --uninstall --yes
start /run/key
sandbox rm --all >/dev/null
stop
within 100 no_process sandbox-keeper
says "removed what was installed" "$uninstall" --purge --yes
refuses "nothing of this is installed" "$1/install.sh" --uninstall --yes

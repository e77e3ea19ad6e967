# The Debian package: installed, replaced by a newer one while a sandbox runs, removed, purged. $1 and $2 are an older and a newer package, $3
# names the data of this run.
says "systemctl enable --now sandbox-server" dpkg --install "$1"
[[ $(stat -c %a /etc/sandbox/api.key) == 600 ]] || fail "others may read the key"
says "/etc/sandbox/sandbox.toml: valid" sandbox-server --config /etc/sandbox/sandbox.toml config check
# An administrator's change.
sed -i "s|^port = 8080|&\ndata_dir = \"/var/lib/sandbox-server/$3\"|" /etc/sandbox/sandbox.toml
start /etc/sandbox/api.key
says "hello from a sandbox" sandbox run sandbox/first:dev -- echo hello from a sandbox
sandbox create sandbox/first:dev --name stays >/dev/null
cp /etc/sandbox/api.key /run/key
dpkg --install "$2" </dev/null >/run/command.log 2>&1 || fail "the newer package is not installed"
grep -q "^data_dir = " /etc/sandbox/sandbox.toml || fail "the configuration is that of the package"
cmp /run/key /etc/sandbox/api.key || fail "there is another key"
stop
start /etc/sandbox/api.key
says "I am here" sandbox exec stays -- echo I am here
sandbox rm --all >/dev/null
stop
within 100 no_process sandbox-keeper
says "Removing sandbox" dpkg --remove sandbox
[[ -s /etc/sandbox/sandbox.toml ]] || fail "the configuration went with the package"
says "Purging configuration files for sandbox" dpkg --purge sandbox

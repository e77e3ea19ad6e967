# From the archive of a release to the first output of a client, whose package is installed from a registry on this machine, replaced by a newer
# one while a sandbox runs, and removed. $1 is the folder of the release, $2 names the data of this run, and $3 is what installs the package: pip,
# npm or go. /srv/registry is what the registry serves, and has the versions 1.0.0 and 1.1.0.
registry=http://127.0.0.1:8100
# Python keeps what it has compiled beside the sources, which would change the files of the machine.
export HOME=/run/home PROGRAM=/run/project/first PYTHONDONTWRITEBYTECODE=1
mkdir -p "$HOME" /run/project
cd /run/project

# Each client has these functions: use runs $PROGRAM, which prints what a command of a sandbox prints, of a new sandbox or of the one that it is
# given; version prints that of the package which is installed;
# left succeeds when something of the package is left.
pip_prepare() {
	python3 -m venv /run/project/venv
	cat >"$PROGRAM.py" <<-'PYTHON'
		import sys
		from sandboxes import Client

		with Client() as client:
		    if len(sys.argv) > 1:
		        sandbox = client.connect(sys.argv[1])
		        print(sandbox.commands.run("echo I am here").stdout)
		    else:
		        with client.create("sandbox/first:dev") as sandbox:
		            print(sandbox.commands.run("echo hello from a sandbox").stdout)
	PYTHON
}
pip_install() { venv/bin/pip install --index-url "$registry/simple" "sandboxes==$1"; }
pip_use() { venv/bin/python "$PROGRAM.py" "$@"; }
pip_version() { venv/bin/pip show sandboxes | sed -n 's/^Version: //p'; }
pip_remove() { venv/bin/pip uninstall --yes sandboxes; }
pip_left() { venv/bin/python -c 'import sandboxes'; }

npm() { node /srv/node/npm/bin/npm-cli.js "$@"; }
npm_prepare() {
	local node
	for node in /srv/node/node-linux-*/bin; do PATH=$node:$PATH; done
	echo '{"type": "module"}' >package.json
	echo "registry=$registry" >.npmrc
	cat >"$PROGRAM.js" <<-'JAVASCRIPT'
		import { Client } from "@sandbox.internal/sdk";

		const client = new Client();
		if (process.argv.length > 2) {
		  const sandbox = await client.connect(process.argv[2]);
		  console.log((await sandbox.commands.run("echo I am here")).stdout);
		} else {
		  const sandbox = await client.create("sandbox/first:dev");
		  console.log((await sandbox.commands.run("echo hello from a sandbox")).stdout);
		  await sandbox.delete();
		}
	JAVASCRIPT
}
npm_install() { npm install "@sandbox.internal/sdk@$1"; }
npm_use() { node "$PROGRAM.js" "$@"; }
npm_version() { node -p 'JSON.parse(fs.readFileSync("node_modules/@sandbox.internal/sdk/package.json")).version'; }
npm_remove() { npm uninstall @sandbox.internal/sdk; }
npm_left() { find node_modules -name package.json | grep .; }

go_prepare() {
	PATH=/srv/go/bin:$PATH
	# The public modules come from a server of this machine, too, and the public database of their hashes cannot be reached.
	export GOPROXY=$registry/go,$registry/modules GOSUMDB=off GOTOOLCHAIN=local
	# /srv/compiled has the standard library, and nothing can be written there, an index of modules neither.
	export GOCACHE=/srv/compiled GODEBUG=goindex=0
	go mod init first
	cat >first.go <<-'GO'
		package main

		import (
			"context"
			"fmt"
			"log"
			"os"

			sandbox "sandbox.internal/clients/go"
		)

		func main() {
			if err := run(context.Background(), os.Args[1:]); err != nil {
				log.Fatal(err)
			}
		}

		func run(ctx context.Context, ids []string) error {
			client, err := sandbox.New(nil)
			if err != nil {
				return err
			}
			defer client.Close()
			if len(ids) > 0 {
				box, err := client.Connect(ctx, ids[0])
				if err != nil {
					return err
				}
				return echo(ctx, box, "I am here")
			}
			box, err := client.Create(ctx, &sandbox.CreateOptions{Image: "sandbox/first:dev"})
			if err != nil {
				return err
			}
			defer func() { _ = box.Delete(ctx) }()
			return echo(ctx, box, "hello from a sandbox")
		}

		func echo(ctx context.Context, box *sandbox.Sandbox, text string) error {
			result, err := box.Commands.Run(ctx, "echo "+text, nil)
			if err == nil {
				fmt.Print(result.Stdout)
			}
			return err
		}
	GO
}
go_install() { go get "sandbox.internal/clients/go@v$1" && go build -o first .; }
go_use() { ./first "$@"; }
go_version() { go list -m sandbox.internal/clients/go | sed 's/.* v//'; }
go_remove() { rm first.go && go mod tidy; }
go_left() { grep sandbox.internal go.mod; }

registry_answers() { (: <>/dev/tcp/127.0.0.1/8100) 2>/dev/null; }
elapsed() { printf '%s: %s %d ms after the first command\n' "$3" "$1" $((($(date +%s%N) - $2) / 1000000)); }

python3 -m http.server 8100 --bind 127.0.0.1 --directory /srv/registry >/run/registry.log 2>&1 &
server_of_packages=$!
within 100 registry_answers

began=$(date +%s%N)
says "version v1.0.0 is installed" "$1/install.sh" --yes --start
sed -i "s|^#data_dir = \"/var/lib/sandbox-server\"|data_dir = \"/var/lib/sandbox-server/$2\"|" /etc/sandbox/sandbox.toml
(umask 077 && sed -n 's/^api_key = "\(.*\)"/\1/p' /etc/sandbox/sandbox.toml >/run/key)
start /run/key
export SANDBOX_URL=http://127.0.0.1:8080 SERVICE_API_KEY=
SERVICE_API_KEY=$(</run/key)
elapsed "the service answers" "$began" "$3"
does "$3_prepare"
does "$3_install" 1.0.0
elapsed "the package is installed" "$began" "$3"
says "hello from a sandbox" "$3_use"
elapsed "first output" "$began" "$3"
says 1.0.0 "$3_version"

id=$(sandbox create sandbox/first:dev --name stays --quiet)
does "$3_install" 1.1.0
says 1.1.0 "$3_version"
says "I am here" "$3_use" "$id"
says "I am here" sandbox exec stays -- echo I am here
does "$3_remove"
if "$3_left" >/run/command.log 2>&1; then fail "the package is not removed: $(</run/command.log)"; fi

sandbox rm --all >/dev/null
stop
within 100 no_process sandbox-keeper
says "removed what was installed" /usr/local/share/sandbox/install.sh --purge --yes
kill "$server_of_packages"

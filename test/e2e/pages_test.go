package e2e_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"sandbox.internal/test/loopback"

	"github.com/google/uuid"

	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// page is a page of the documentation whose shell blocks run.
type page struct {
	file    string
	plan    conformance.Plan
	image   string // of a sandbox whose id is in $ID; empty when the page makes its own
	expects string // what the blocks have to print
	changes []change
	prepare func(t *testing.T, s *service, directory string)
	// prove holds what the blocks left in the directory; nil where it is enough that they print
	// what is expected.
	prove    func(t *testing.T, directory string)
	patience time.Duration // for all blocks; 0 is twice wait.Patience()
}

// change is text of a page that cannot run in a test as it stands, and why. An empty instead leaves
// it out.
type change struct{ text, instead, because string }

const (
	pageID     = "5f0c1e0e-2f0b-4a53-9b0e-0a4a3c1c7d11"
	pageServer = "http://127.0.0.1:8080"
	elsewhere  = "the service under test listens elsewhere"
	anyID      = "a sandbox has another id"
	serves     = "it serves until a signal comes, which it gets when it listens, and has to end with 0"
)

// preamble is in front of a page's blocks. A request that is refused ends the page. A stream that
// does not end by itself (curl -N) is read for longer than it may be silent, and has to bring
// something.
const preamble = `set -e -o pipefail
curl() {
	local output status=0
	[[ " $* " =~ " -"[a-zA-Z]*"N " ]] || { command curl -fsS --max-time 60 "$@"; return; }
	output=$(command curl -fsS --max-time 12 "$@") || status=$?
	printf '%s\n' "$output"
	[[ -n $output && ($status == 0 || $status == 28) ]]
}
# running prints the id of the newest sandbox of which port 8000 answers.
running() {
	local id deadline=$((SECONDS + 100))
	while ((SECONDS < deadline)); do
		id=$(curl -H "SERVICE-API-KEY: $SERVICE_API_KEY" "$URL/v1/sandboxes?state=Running" | jq -r '.items[0].id // empty')
		if [[ -n $id ]] && command curl -fso /dev/null -H "SERVICE-API-KEY: $SERVICE_API_KEY" "$URL/v1/sandboxes/$id/proxy/8000/"; then
			echo "$id"; return
		fi
		sleep 0.1 # between two looks
	done
	return 1
}
# serving runs a program until it listens, stops it, and returns its exit code.
serving() {
	local deadline=$((SECONDS + 100)) code=0
	: >serving.log # what an earlier program wrote is not this one's
	"$@" 2>>serving.log &
	until grep -q ' listens"' serving.log; do
		kill -0 $! && ((SECONDS < deadline)) || { cat serving.log; return 1; }
		sleep 0.1 # between two looks
	done
	kill $!
	wait $! || code=$?
	cat serving.log
	return $code
}
# own gives a configuration that "config init" wrote a place that no other service has.
own() {
	sed -i -e "0,/^#data_dir = /s|^#data_dir = .*|data_dir = \"$PWD/data\"|" -e "s|^instance = .*|instance = \"docs-$$\"|" -e 's|^port = .*|port = 0|' "$1"
	[[ $(grep -cE "^(data_dir = \"$PWD|instance = \"docs-|port = 0$)" "$1") == 3 ]]
}
set -v
`

// TestPages runs the shell blocks of the documentation against a service with real sandboxes: those
// of a page in their order, in one shell.
func TestPages(t *testing.T) {
	t.Parallel()
	debug := fmt.Sprintf("127.0.0.1:%d", loopback.Port(t))
	sidecar := "docs-" + uuid.NewString()[:8]
	egress := fmt.Sprintf("[egress]\nimage = %q\n", egressImage)
	for _, p := range []page{
		{file: "README.md", expects: `"execution_complete"`, changes: []change{
			{pageServer, "$SERVICE", elsewhere},
			{"$(cat ~/.local/state/sandbox-run/api.key)", "$SERVICE_API_KEY",
				"make run made that file, not the test"},
			{readmeMake, "", "these are the commands that run this test"},
		}},
		{file: "docs/lifecycle.md", plan: conformance.Plan{Settings: egress},
			expects: "Directory listing", changes: []change{
				{pageServer, "$SERVICE", elsewhere},
				{"python:3.12", baseImage, "there is no registry"},
				{pageID, "$(running)", anyID},
				{"# 204, then Terminated", "; ID=$(running)",
					"the page goes on with a sandbox that has not ended"},
				{"call -N $PORT/events ", "#",
					"the page's sandbox serves files; TestConformance has streams through the service"},
				{"call $PORT/upload ", "#",
					"the page's sandbox serves files; TestConformance has bodies through the service"},
			}},
		{file: "docs/execd.md", image: "sandbox/python:dev", expects: "execution_complete",
			changes: []change{
				{pageServer, "$SERVICE", elsewhere},
				{pageID, "$SANDBOX", anyID},
				{"jupyter-server --ServerApp", "# ",
					"test/e2e/cells starts one like this on this machine and runs every language on it"},
				{"websocat -b", "# ",
					"it is in no package source of Debian; TestConformance attaches to terminals"},
			}},
		{file: "docs/ingress.md", image: busyboxImage, expects: `"signature"`, changes: []change{
			{pageServer, "$SERVICE", elsewhere},
			{pageID, "$SANDBOX", anyID},
			{"curl -H 'X-EXECD-ACCESS-TOKEN: …' https://", "# ",
				"it needs a domain and TLS; TestIngress has all modes"},
			{"export SERVICE_API_KEY=…", "#", "the key is that of the service under test"},
			{"/var/lib/sandbox-server/signing.key", "signing.key",
				"it is where the service under test keeps it"},
			{"/etc/sandbox/", "", "it is where the service under test keeps it"},
			{"https://sandboxes-api.example.com", "$SERVICE", elsewhere},
			{"127.0.0.1:8081", "127.0.0.1:0", "the port may be taken"},
			{"bin/sandbox-ingress",
				"serving bin/sandbox-ingress --listen 127.0.0.1:0 --admin 127.0.0.1:0", serves},
		}, prepare: func(t *testing.T, s *service, directory string) {
			key, err := os.ReadFile(filepath.Join(s.Directory, "signing.key"))
			if err != nil {
				t.Fatal(err)
			}
			conformance.Write(t, directory, "signing.key", string(key))
			conformance.Write(t, directory, "ingress.key", conformance.AdminKey)
			_, after, _ := strings.Cut(conformance.ReadPage(t, "docs/ingress.md"), "\n```toml\n")
			routes, _, _ := strings.Cut(after, "\n```")
			conformance.Write(t, directory, "routes.toml", routes)
		}},
		{file: "docs/network.md", plan: conformance.Plan{Settings: egress}, image: busyboxImage,
			expects: `"defaultAction"`, changes: []change{
				{pageServer, "$SERVICE", elsewhere},
				{pageID, "$SANDBOX", anyID},
				{"--name S ", "--name " + sidecar + " ",
					"names are the engine's, which other tests use"},
				{"container:S ", "container:" + sidecar + " ",
					"names are the engine's, which other tests use"},
				{"IMAGE\n", "--name " + sidecar + "-joined " + busyboxImage + " true\n",
					"it stands for an image"},
			}, prepare: func(t *testing.T, _ *service, _ string) {
				t.Cleanup(func() { dockerCLI(t, "rm", "-f", "-v", sidecar+"-joined", sidecar) })
			}},
		{file: "docs/configuration.md", expects: ` listens"`, changes: []change{
			{"bin/sandbox-server --config sandbox.toml                 #",
				"own sandbox.toml; serving bin/sandbox-server --config sandbox.toml #",
				serves + ", and has data, an instance and a port of its own"},
		}},
		{file: "docs/runbook.md", image: busyboxImage, expects: `"CONTAINER_RUNNING"`,
			// A receiver that is not there.
			plan: conformance.Plan{Program: true, Settings: "[[webhooks]]\nurl = \"http://127.0.0.1:1/\"\nallow_private = true\n" +
				"secret = \"whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\"\n"},
			changes: []change{
				{pageServer, "$SERVICE", elsewhere},
				{pageID, "$SANDBOX", anyID},
			}},
		{file: "docs/security.md",
			plan: conformance.Plan{Program: true, Server: "audit_log = \"AUDIT\"\n"}, expects: "OK, ",
			changes: []change{
				{"9d02…", "$(tail -n 1 audit.log | jq -r .hash)", "another log has other hashes"},
			}, prepare: rotateAudit},
		{file: "docs/monitoring.md",
			plan:    conformance.Plan{Program: true, Server: fmt.Sprintf("debug_address = %q\n", debug)},
			expects: "goroutine 1 [", changes: []change{
				{"127.0.0.1:6060", debug, elsewhere},
			}},
		{file: "docs/clients.md", patience: conformance.Building, changes: []change{
			{clientPackages, "",
				"scripts/node.sh has installed them, from the lock file of the client that the page names"},
		}, prepare: prepareClients, prove: proveClients},
	} {
		t.Run(p.file, func(t *testing.T) { t.Parallel(); p.run(t) })
	}
}

const (
	readmeMake = "make run        # build, start the service, take a first sandbox through its life, serve until Ctrl-C\n" +
		"make test       # what a change needs: the packages, the local engine with crun, the three clients\n" +
		"make test-all   # everything: also Docker, Kubernetes, a browser, the race detector; then the benchmarks\n"
	clientPackages = "npm install --save-dev openapi-typescript@7.13.0\n"
)

// run starts a service and runs the blocks in a directory that has what the page takes for granted.
func (p page) run(t *testing.T) {
	directory := t.TempDir()
	p.plan.Server = strings.ReplaceAll(p.plan.Server, "AUDIT", filepath.Join(directory, "audit.log"))
	s := start(t, p.plan)
	var blocks strings.Builder
	for _, rest := range strings.Split(conformance.ReadPage(t, p.file), "\n```sh\n")[1:] {
		block, _, _ := strings.Cut(rest, "\n```")
		blocks.WriteString(block + "\n")
	}
	script := blocks.String()
	if script == "" {
		t.Fatal("there is no block")
	}
	for _, c := range p.changes {
		if !strings.Contains(script, c.text) {
			t.Errorf("no block has %q any more", c.text)
		}
		script = strings.ReplaceAll(script, c.text, c.instead)
	}
	programs := []string{}
	for _, name := range []string{"sandbox-server", "sandbox-ingress"} {
		if !strings.Contains(script, name) {
			continue
		}
		program := conformance.Build(t, "sandbox.internal/server/cmd/"+name)
		programs = append(programs, filepath.Dir(program))
		if err := os.Symlink(filepath.Dir(program), filepath.Join(directory, "bin")); err != nil &&
			!os.IsExist(err) {
			t.Fatal(err)
		}
	}
	conformance.Write(t, directory, "create.json", `{"image":{"uri":"`+baseImage+`"},"timeout":600,"resourceLimits":{"cpu":"500m","memory":"512Mi"},
		"entrypoint":["python3","-m","http.server","8000"],"metadata":{"name":"demo"}}`)
	conformance.Write(t, directory, "a.csv", strings.Repeat("hello;there\n", 50))
	environment := append(os.Environ(),
		"PATH="+strings.Join(append(programs, os.Getenv("PATH")), ":"),
		"GOFLAGS=", "GOWORK=off", // the test's own are not for modules of others
		"SERVICE="+s.URL, "SERVICE_API_KEY="+conformance.AdminKey, "SANDBOX_CONFIG_PATH="+s.File,
		"PPROF_TMPDIR="+directory)
	if p.image != "" {
		request := conformance.Request(p.image, "sleep", "10000")
		request.Timeout = 7200
		environment = append(environment, "SANDBOX="+s.Running(t, request))
	}
	if p.prepare != nil {
		p.prepare(t, s, directory)
	}
	patience := p.patience
	if patience == 0 {
		patience = 2 * wait.Patience()
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conformance.Write(t, directory, "page.sh", preamble+script)
	shell := exec.CommandContext(ctx, "bash", "page.sh")
	shell.Dir, shell.Env, shell.WaitDelay = directory, environment, time.Second
	output, err := shell.CombinedOutput()
	if err != nil || !strings.Contains(string(output), p.expects) {
		t.Errorf("%v, or there is no %q in\n%s", err, p.expects, output)
	} else if p.prove != nil {
		p.prove(t, directory)
	}
}

// prepareClients makes the directory a Go module with the contracts, and with the packages that the
// page asks npm for.
func prepareClients(t *testing.T, _ *service, directory string) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{
		"node_modules": conformance.NodePackages(t, "clients/typescript"),
		"openapi":      filepath.Join(root, "openapi"),
	} {
		if err := os.Symlink(target, filepath.Join(directory, name)); err != nil {
			t.Fatal(err)
		}
	}
	packages := conformance.ReadPage(t, "clients/typescript/package.json")
	for _, match := range regexp.MustCompile(`([a-z-]+)@([0-9.]+)`).FindAllStringSubmatch(
		clientPackages, -1) {
		if !strings.Contains(packages, fmt.Sprintf("%q: %q", match[1], match[2])) {
			t.Errorf("docs/clients.md installs %s, and clients/typescript another version",
				match[0])
		}
	}
	conformance.Write(t, directory, "go.mod", "module client\n\ngo 1.26.0\n")
}

// proveClients compiles what ogen made, and looks for an operation in what the others made. Their
// clients are compiled with this repository.
func proveClients(t *testing.T, directory string) {
	// of packages it only compiles
	conformance.Tool(t, directory, nil, "go", "install", "-trimpath", "./lifecycle", "./execd")
	for file, operation := range map[string]string{
		"lifecycle.ts": "listSandboxes", "execd.ts": "runCommand", "lifecycle.go": "ListSandboxes(",
		"execd.go": "RunCommand(",
	} {
		content, err := os.ReadFile(filepath.Join(directory, file))
		if err != nil || !strings.Contains(string(content), operation) {
			t.Errorf("%s has no %s: %v", file, operation, err)
		}
	}
}

// rotateAudit does what the page asks for, so that there is an earlier file of the audit log.
func rotateAudit(t *testing.T, s *service, directory string) {
	file := filepath.Join(directory, "audit.log")
	if err := os.Rename(file, file+".1"); err != nil {
		t.Fatal(err)
	}
	if err := s.HUP(); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "there is another audit log",
		func() bool { _, err := os.Stat(file); return err == nil })
	s.Running(t, idle())
}

package clients_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/e2e/conformance/localengine"
	"sandbox.internal/test/wait"
)

// examples are those of the help, by the command. They run in this order, in one directory, against
// one service; each command has at least one, and none is run that is not here.
var examples = []struct {
	command string
	// poke makes something happen that an example which goes on would show. It may be empty.
	poke []string
	// typed is what a person does on a terminal; empty means that it needs none.
	typed string
	// lasts says that the example goes on until an interrupt, once it has printed something.
	lasts bool
}{
	{command: "doctor"},
	{command: "mcp"},
	{command: "mcp config"},
	{command: "create"},
	{command: "ls"},
	{command: "get"},
	{command: "wait"},
	{command: "run"},
	{command: "exec"},
	{command: "commands"},
	{command: "shell", typed: "exit\r"},
	{command: "ssh"},
	{command: "ssh-config"},
	{command: "code"},
	{command: "cp"},
	{command: "files"},
	{command: "files ls"},
	{command: "files cat"},
	{command: "files put"},
	{command: "files mv"},
	{command: "files find"},
	{command: "files get"},
	{command: "files mkdir"},
	{command: "files chmod"},
	{command: "files rm"},
	{command: "files watch", lasts: true},
	{command: "logs", lasts: true},
	{command: "events", lasts: true, poke: []string{"renew", "box", "--for", "90m"}},
	{command: "activity", lasts: true},
	{command: "holds"},
	{command: "stats", lasts: true},
	{command: "top"},
	{command: "port", lasts: true},
	{command: "url"},
	{command: "network"},
	{command: "network show"},
	{command: "network allow"},
	{command: "network deny"},
	{command: "network propose"},
	{command: "network watch", lasts: true,
		poke: []string{"exec", "box", "--", "sh", "-c", "getent hosts name.test || true"}},
	{command: "lifecycle"},
	{command: "pause"},
	{command: "resume"},
	{command: "renew"},
	{command: "snapshot create"},
	{command: "snapshot"},
	{command: "snapshot ls"},
	{command: "snapshot diff"},
	{command: "snapshot export"},
	{command: "snapshot tree"},
	{command: "rollback"},
	{command: "fork"},
	{command: "snapshot rm"},
	{command: "bench"},
	{command: "image"},
	{command: "image ls"},
	{command: "image pull"},
	{command: "image load"},
	{command: "image rm"},
	{command: "image prune"},
	{command: "key"},
	{command: "key create"},
	{command: "key ls"},
	{command: "key show"},
	{command: "key rotate"},
	{command: "key rm"},
	{command: "demo"},
	{command: "version"},
	{command: "login"},
	{command: "context"},
	{command: "context ls"},
	{command: "context use"},
	{command: "context rm"},
	{command: "docs"},
	{command: "rm"},
}

// endless are flags and commands of examples that go on.
var endless = []string{" -f", " -w ", " watch box", " watch -r", " port "}

// TestExamplesOfTheHelp runs every example that the help of the tool shows.
func TestExamplesOfTheHelp(t *testing.T) {
	t.Parallel()
	s := startWithPython(t, conformance.Plan{
		Server:   fmt.Sprintf("default_image = %q", baseImage),
		Settings: fmt.Sprintf("[egress]\nimage = %q\n", egressImage),
	})
	c := newCommandLine(t, s.URL)
	c.env = append(c.env, "PATH="+filepath.Dir(c.program)+":"+os.Getenv("PATH"))
	conformance.Write(t, c.directory, "notes.txt", "a note\n")
	var listed []string
	for _, e := range examples {
		listed = append(listed, e.command)
	}
	for _, command := range c.commands(t, "") {
		if !slices.Contains(listed, command) {
			t.Errorf("the examples of %q are not run", command)
		}
	}
	for _, e := range examples {
		lines := c.examplesOf(t, e.command)
		if len(lines) == 0 {
			t.Errorf("%s has no example", e.command)
		}
		// What some examples need, which people have by then.
		switch e.command {
		case "code":
			c.must(t, "create", pythonImage, "--name", "notebook")
		case "image load":
			saveImage(t, filepath.Join(c.directory, "image.tar"), "example/tool:1")
		case "snapshot diff":
			c.must(t, "snapshot", "create", "box", "--name", "after")
		case "files rm":
			c.must(t, "exec", "box", "mkdir", "/tmp/old")
		}
		for _, line := range lines {
			command := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", "exec "+line)
			if strings.Contains(line, "|") {
				command.Args[len(command.Args)-1] = line
			}
			command.Dir, command.Env = c.directory, c.env
			goesOn := e.lasts && slices.ContainsFunc(endless, func(mark string) bool {
				return strings.Contains(line, mark)
			})
			began := time.Now()
			switch {
			case e.typed != "":
				session, _ := c.beginOnTerminal(t, 80, command)
				typeExample(t, c, session, line, e.typed)
			case goesOn:
				session := c.begin(t, command)
				wait.Until(t, line, func() bool {
					if len(e.poke) > 0 {
						c.must(t, e.poke...)
					}
					return session.text() != ""
				})
				session.interrupt(t)
				session.end(t, 130)
			default:
				text, err := command.CombinedOutput()
				if err != nil {
					t.Fatalf("%s\n%v\n%s", line, err, text)
				}
			}
			t.Logf("%6.2f s  %s", time.Since(began).Seconds(), line)
		}
	}
	for _, sandbox := range s.Everything(t) {
		if !conformance.Final(sandbox.Status.State) && sandbox.Status.State != "Stopping" {
			t.Errorf("%s is left %s", sandbox.Metadata["name"], sandbox.Status.State)
		}
	}
}

// typeExample types into an example of a terminal.
func typeExample(t *testing.T, c *commandLine, session *session, line, typed string) {
	t.Helper()
	switch {
	case strings.Contains(line, "python3"):
		session.await(t, ">>> ")
		typed = "exit()\r"
		// Leave one behind for the next example.
		behind, _ := c.beginOnTerminal(t, 80, c.command(t, "shell", "box"))
		behind.send(t, "echo behind-$((1+1))\r")
		behind.await(t, "behind-2")
		behind.send(t, "\x10\x11")
		behind.end(t, 0)
	case strings.Contains(line, "--attach"):
		session.await(t, "behind-2")
	}
	session.send(t, typed)
	session.end(t, 0)
}

// commands are those that the completion offers, with those below them.
func (c *commandLine) commands(t *testing.T, above string) []string {
	t.Helper()
	var found []string
	for line := range strings.Lines(c.must(t, append(append([]string{"__complete"},
		strings.Fields(above)...), "")...)) {
		name, _, ok := strings.Cut(line, "\t")
		if !ok || name == "help" || name == "completion" {
			continue // they are cobra's
		}
		command := strings.TrimSpace(above + " " + name)
		found = append(found, command)
		if above == "" && slices.Contains([]string{"context", "files", "image", "key", "mcp", "network", "snapshot"}, name) {
			found = append(found, c.commands(t, command)...)
		}
	}
	return found
}

// examplesOf reads the examples of a command's help, one line each.
func (c *commandLine) examplesOf(t *testing.T, command string) []string {
	t.Helper()
	_, text, _ := strings.Cut(c.must(t, append(strings.Fields(command), "--help")...), "\nExamples:\n")
	text, _, _ = strings.Cut(text, "\n\n")
	text = strings.ReplaceAll(text, "\\\n", " ")
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// saveImage writes an archive as docker save does.
func saveImage(t *testing.T, file, reference string) {
	t.Helper()
	image, err := tarball.ImageFromPath(filepath.Join(localengine.Archives(), "busybox.tar"), nil)
	if err != nil {
		t.Fatal(err)
	}
	named, err := name.NewTag(reference)
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.WriteToFile(file, named, image); err != nil {
		t.Fatal(err)
	}
}

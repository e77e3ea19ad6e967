package clients_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/creack/pty"

	"sandbox.internal/server/config"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

func TestCommandLine(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{Keys: []config.Key{
		{Name: "u", SHA256: conformance.Digest("key-of-a-user"), Role: "user"},
		{Name: "v", SHA256: conformance.Digest("key-of-a-viewer"), Role: "viewer"},
	}})
	c := newCommandLine(t, s.URL)
	box := strings.TrimSpace(c.must(t, "create", baseImage, "--name", "box", "-q"))

	t.Run("exit codes", func(t *testing.T) {
		t.Parallel()
		for _, test := range []struct {
			args           []string
			code           int
			stdout, stderr string
		}{
			{[]string{"exec", "box", "--", "sh", "-c", "echo out; echo err >&2; exit 7"}, 7, "out\n",
				"err\n"},
			{[]string{"exec", "box", "true"}, 0, "", ""},
			{[]string{"exec", "box", "sh", "-c", "kill -9 $$"}, 137, "", ""},
			{[]string{"exec", "box", "no-such-program"}, 127, "", "not found"},
			{[]string{"exec", "box", "/etc/passwd"}, 126, "", "denied"},
			{[]string{"exec", "--timeout", "200ms", "box", "sleep", "60"}, 124, "", "was ended"},
			{[]string{"exec", "-w", "/nowhere", "box", "true"}, 125, "", "cwd"},
			{[]string{"exec", "nobody", "true"}, 125, "", `no sandbox "nobody"`},
			{[]string{"exec", "-u", "65534:65534", "-e", "A=it's", "-w", "/tmp", "box", "sh", "-c",
				`echo "$(id -u):$(id -g) $A $PWD"`}, 0, "65534:65534 it's /tmp\n", ""},
			{[]string{"run", "no.invalid/image", "true"}, 125, "", "IMAGE_PULL_ERROR"},
			{[]string{"run", "-q", "--memory", "64Mi", busyboxImage, "--", "awk",
				`BEGIN { x = "x"; while (1) x = x x }`}, 137, "", "memory ran out (OOM_KILLED)"},
			{[]string{"--api-key", "wrong", "ls"}, 1, "", "401"},
		} {
			got := c.run(t, "", test.args...)
			if got.code != test.code || got.stdout != test.stdout ||
				!strings.Contains(got.stderr, test.stderr) || test.stderr == "" && got.stderr != "" {
				t.Errorf("sandbox %s: code %d, want %d\nstdout %q\nstderr %q",
					strings.Join(test.args, " "), got.code, test.code, got.stdout, got.stderr)
			}
		}
	})

	t.Run("standard input", func(t *testing.T) {
		t.Parallel()
		input := strings.Repeat("every byte counts \x00\xff\r\n", 50_000)
		got := c.run(t, input, "exec", "-i", "box", "cat")
		if got.code != 0 || got.stdout != input || got.stderr != "" {
			t.Errorf("code %d, %d bytes came back of %d, stderr %q", got.code, len(got.stdout),
				len(input), got.stderr)
		}
		if got := c.run(t, "x", "exec", "box", "cat"); got.code != 0 || got.stdout != "" {
			t.Errorf("without -i: code %d, stdout %q", got.code, got.stdout)
		}
		got = c.run(t, "secret", "exec", "-i", "-u", "65534", "box", "cat")
		if got.code != 0 || got.stdout != "secret" {
			t.Errorf("as another user: %v", got)
		}
		got = c.run(t, strings.Repeat("y\n", 1<<20), "exec", "-i", "box", "head", "-n", "1")
		if got.code != 0 || got.stdout != "y\n" || got.stderr != "" {
			t.Errorf("a program that reads no further: %v", got)
		}
		got = c.run(t, input, "run", "-q", "-i", busyboxImage, "--", "wc", "-c")
		if got.code != 0 || strings.TrimSpace(got.stdout) != fmt.Sprint(len(input)) {
			t.Errorf("in a sandbox of its own: %v", got)
		}
	})

	// The program answers each line before it is given the next one, and ends with its input.
	t.Run("a conversation", func(t *testing.T) {
		t.Parallel()
		command := c.command(t, "exec", "-i", "box", "sh", "-c",
			`while read line; do echo "<$line>"; done; echo over`)
		input, err := command.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		s := c.begin(t, command)
		for _, line := range []string{"one", "two"} {
			if _, err := io.WriteString(input, line+"\n"); err != nil {
				t.Fatal(err)
			}
			s.await(t, "<"+line+">\n")
		}
		if err := input.Close(); err != nil {
			t.Fatal(err)
		}
		s.end(t, 0)
		if !strings.HasSuffix(s.text(), "over\n") {
			t.Errorf("the program printed %q", s.text())
		}
	})

	t.Run("signals", func(t *testing.T) {
		t.Parallel()
		const waits = "echo ready; while :; do sleep 0.1; done"
		s := c.begin(t, c.command(t, "exec", "box", "sh", "-c",
			`trap 'echo caught; exit 9' TERM; `+waits))
		s.await(t, "ready\n")
		s.interrupt(t)
		s.end(t, 9)
		if !strings.HasSuffix(s.text(), "caught\n") {
			t.Errorf("the program was not asked to end:\n%s", s.text())
		}

		// The second one leaves, also when the sandbox does not answer.
		c.must(t, "create", busyboxImage, "--name", "frozen")
		s = c.begin(t, c.command(t, "exec", "frozen", "sh", "-c", waits))
		s.await(t, "ready\n")
		c.must(t, "pause", "frozen")
		wait.Until(t, "the tool leaves", func() bool {
			_ = s.Process.Signal(os.Interrupt) // it may have ended
			select {
			case <-s.ended:
				return true
			default:
				return false
			}
		})
		s.end(t, 130)
	})

	t.Run("copies", func(t *testing.T) { t.Parallel(); testCopies(t, c) })
	t.Run("terminal", func(t *testing.T) { t.Parallel(); testTerminal(t, c) })

	t.Run("names", func(t *testing.T) {
		t.Parallel()
		for range 2 {
			c.must(t, "create", busyboxImage, "--name", "Zwillinge – zwei", "--no-wait")
		}
		got := c.run(t, "", "get", "Zwillinge – zwei")
		if got.code != 1 || !strings.Contains(got.stderr, "is ambiguous: ") ||
			strings.Count(got.stderr, "Zwillinge") != 3 {
			t.Errorf("code %d, stderr %q", got.code, got.stderr)
		}
		if got := c.must(t, "get", box[:13], "-o", "name"); got != "box\n" {
			t.Errorf("by the beginning of its id: %q", got)
		}
		command := c.command(t, "ls")
		command.Env = append(command.Env, "LC_ALL=C")
		text, err := command.Output()
		if err != nil || !bytes.Contains(text, []byte("Zwillinge ? zwei")) {
			t.Errorf("in the locale C (%v):\n%s", err, text)
		}
	})

	t.Run("watches", func(t *testing.T) { t.Parallel(); testWatches(t, c) })

	t.Run("roles", func(t *testing.T) {
		t.Parallel()
		got := c.run(t, "", "--api-key", "key-of-a-user", "ls", "-q")
		if got.code != 0 || got.stdout != "" {
			t.Errorf("a user sees %q of others (%s)", got.stdout, got.stderr)
		}
		got = c.run(t, "", "--api-key", "key-of-a-user", "exec", box, "true")
		if got.code != 125 {
			t.Errorf("a user runs a program in the sandbox of another: %v", got)
		}
		got = c.run(t, "", "--api-key", "key-of-a-viewer", "get", "box", "-q")
		if got.stdout != box+"\n" {
			t.Errorf("a viewer does not see the sandbox: %v", got)
		}
		got = c.run(t, "", "--api-key", "key-of-a-viewer", "rm", "box")
		if got.code != 1 || !strings.Contains(got.stderr, "403 FORBIDDEN") {
			t.Errorf("a viewer deletes the sandbox: %v", got)
		}
	})

	t.Run("forwarded port", func(t *testing.T) {
		t.Parallel()
		c.must(t, "cp", writeFile(t, "index.html", "<p>hello</p>"), "box:/srv/www/index.html")
		web := c.begin(t, c.command(t, "exec", "box", "python3", "-u", "-m", "http.server", "-d", "/srv",
			"8000"))
		web.await(t, "Serving")
		port := c.begin(t, c.command(t, "port", "box", "0:8000"))
		port.await(t, " port 8000")
		url, _, _ := strings.Cut(port.text(), " ")
		// Without its slash a directory is a redirection.
		got := conformance.Fetch(t, url+"/www")
		if got.Status != http.StatusOK || !strings.Contains(got.Body, "hello") ||
			got.Header.Get("Content-Security-Policy") != "" {
			t.Errorf("status %d, headers %v: %s", got.Status, got.Header, got.Body)
		}
		port.interrupt(t)
		port.end(t, 130)
		web.interrupt(t)
		web.end(t, 130)
	})
}

// testWatches: tables that follow what happens.
func testWatches(t *testing.T, c *commandLine) {
	list := c.begin(t, c.command(t, "ls", "--watch", "--filter", "metadata.name=watched"))
	top, _ := c.beginOnTerminal(t, 60, c.command(t, "top"))
	top.await(t, "  box  ")
	// On a terminal the progress of a create is one line, which is taken away.
	created, _ := c.beginOnTerminal(t, 20,
		c.command(t, "create", busyboxImage, "--name", "watched"))
	created.end(t, 0)
	text := created.text()
	if !strings.Contains(text, "\x1b[Kstarting watched") ||
		!strings.Contains(text, "\x1b[KID") || strings.Count(text, "\n") != 2 {
		t.Errorf("create on a terminal prints %q", text)
	}
	one := c.begin(t, c.command(t, "get", "--watch", "watched", "-o", "json"))
	one.await(t, `"Running"`)
	list.await(t, "Running")
	top.await(t, " watched ") // which only has what runs
	c.must(t, "pause", "watched")
	one.await(t, `"Paused"`)
	list.await(t, "Paused")
	c.must(t, "rm", "--filter", "metadata.name=watched")
	one.end(t, 0)
	list.await(t, "Terminated")
	for _, session := range []*session{list, one} {
		if text := session.text(); strings.Count(text, "Terminated") != 1 {
			t.Errorf("the end is not shown once:\n%s", text)
		}
	}
	list.interrupt(t)
	list.end(t, 130)
	top.send(t, "\x03")
	top.end(t, 130)
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
	return file
}

func digestOf(t *testing.T, file string) [32]byte {
	t.Helper()
	content, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	digest := sha256.New()
	if _, err := io.Copy(digest, content); err != nil {
		t.Fatal(err)
	}
	return [32]byte(digest.Sum(nil))
}

// testCopies: a large file both ways, and a tree as files and as a tar stream.
func testCopies(t *testing.T, c *commandLine) {
	const size = 100 << 20
	directory := t.TempDir()
	large, back := filepath.Join(directory, "large"), filepath.Join(directory, "back")
	pattern := make([]byte, 1<<20)
	for i := range pattern {
		pattern[i] = byte(i * i >> 7)
	}
	file, err := os.OpenFile(large, os.O_CREATE|os.O_WRONLY, 0o750)
	if err != nil {
		t.Fatal(err)
	}
	for i := range size >> 20 {
		pattern[0] = byte(i)
		if _, err := file.Write(pattern); err != nil {
			t.Fatal(err)
		}
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	c.must(t, "cp", large, "box:/tmp/large")
	c.must(t, "cp", "box:/tmp/large", back)
	if digestOf(t, large) != digestOf(t, back) {
		t.Error("100 MiB came back changed")
	}
	if info, err := os.Stat(back); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("the mode of the copy is %v (%v)", info.Mode(), err)
	}
	c.must(t, "files", "rm", "box", "/tmp/large")

	tree := filepath.Join(directory, "tree")
	for name, text := range map[string]string{"a": "1", "b/c": "22", "b/d e": "", "b/ü": "4"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(tree, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(tree, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{"to c": "b/c", "b/up": "../a", "b/nowhere": "/no/such", "directory": "b"} {
		if err := os.Symlink(target, filepath.Join(tree, name)); err != nil {
			t.Fatal(err)
		}
	}
	c.must(t, "cp", tree, "box:/tmp")
	out := c.command(t, "cp", "box:/tmp/tree", "-")
	archive, err := out.Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := c.run(t, string(archive), "cp", "-", "box:/tmp/again"); got.code != 0 {
		t.Fatalf("from a tar stream: %s", got.stderr)
	}
	c.must(t, "cp", "box:/tmp/again/tree", filepath.Join(directory, "copy"))
	if text, err := exec.CommandContext(t.Context(), "diff", "-r", "--no-dereference", tree,
		filepath.Join(directory, "copy")).CombinedOutput(); err != nil {
		t.Errorf("the tree came back changed: %v\n%s", err, text)
	}
	if got := c.must(t, "exec", "box", "readlink", "/tmp/again/tree/b/nowhere"); got != "/no/such\n" {
		t.Errorf("a link of the tar stream leads to %q", got)
	}
	c.must(t, "cp", filepath.Join(tree, "to c"), "box:/tmp/link")
	c.must(t, "cp", "-L", filepath.Join(tree, "to c"), "box:/tmp/followed")
	if got := c.must(t, "exec", "box", "sh", "-c", "readlink /tmp/link; cat /tmp/followed"); got != "b/c\n22" {
		t.Errorf("the link, and what it leads to: %q", got)
	}
	c.must(t, "cp", "box:/tmp/link", filepath.Join(directory, "link"))
	if target, err := os.Readlink(filepath.Join(directory, "link")); err != nil || target != "b/c" {
		t.Errorf("the link came back as %q, %v", target, err)
	}
	c.must(t, "cp", "-L", "box:/tmp/tree/to c", filepath.Join(directory, "text"))
	if text, err := os.ReadFile(filepath.Join(directory, "text")); err != nil || string(text) != "22" {
		t.Errorf("the target of the link came as %q, %v", text, err)
	}
}

// testTerminal: a shell on a narrow terminal, which is resized, left and come back to.
func testTerminal(t *testing.T, c *commandLine) {
	shell, terminal := c.beginOnTerminal(t, 20,
		c.command(t, "shell", "box", "--", "bash", "--norc"))
	shell.send(t, "stty size; echo first-$((20+1))\r")
	shell.await(t, "24 20")
	shell.await(t, "first-21")
	if err := pty.Setsize(terminal, &pty.Winsize{Rows: 30, Cols: 77}); err != nil {
		t.Fatal(err)
	}
	shell.send(t, "until [ \"$(stty size)\" = '30 77' ]; do sleep 0.05; done; "+
		"echo resized-$((1+1))\r")
	shell.await(t, "resized-2")
	// Ctrl-C is the program's.
	shell.send(t, "sh -c 'echo sleeps-$((1+1)); exec sleep 1000'\r")
	shell.await(t, "sleeps-2") // before that, the shell itself would get the interrupt, and ignore it
	shell.send(t, "\x03")
	shell.send(t, "echo status-$?-\r")
	shell.await(t, "status-130-")
	shell.send(t, "(sleep 0.5; echo behind-$((40+2))) &\r")
	shell.await(t, "[1] ")
	shell.send(t, "echo left-$((2+1))\r")
	shell.await(t, "left-3")
	shell.send(t, "\x10\x11")
	shell.await(t, "detached; come back with: sandbox shell --attach=")
	shell.end(t, 0)

	again, _ := c.beginOnTerminal(t, 77, c.command(t, "shell", "--attach", "box"))
	again.await(t, "behind-42")
	if text := again.text(); strings.Count(text, "first-21") != 1 ||
		!strings.Contains(text, "status-130-") {
		t.Errorf("the past is not shown once:\n%q", text)
	}
	again.send(t, "exit 5\r")
	again.end(t, 5)

	// Tables and programs on a narrow terminal.
	list, _ := c.beginOnTerminal(t, 20, c.command(t, "ls"))
	list.end(t, 0)
	for line := range strings.Lines(list.text()) {
		if n := len([]rune(strings.TrimRight(line, "\r\n"))); n > 20 {
			t.Errorf("a line of ls has %d columns: %q", n, line)
		}
	}
	failed, _ := c.beginOnTerminal(t, 20, c.command(t, "exec", "-it", "box", "no-such-program"))
	failed.end(t, 127)
	timed, _ := c.beginOnTerminal(t, 77, c.command(t, "exec", "-it", "-u", "65534:7", "--timeout", "10s",
		"-w", "/", "box", "sh", "-c", "echo user-$(id -u)-$(id -g)-; sleep 1000"))
	timed.await(t, "user-65534-7-")
	timed.end(t, 124)
	if !strings.Contains(timed.text(), "ended by its timeout") {
		t.Errorf("after a timeout the tool says\n%s", timed.text())
	}
}

// classSettings are settings with one runtime class.
const classSettings = "[[runtime.classes]]\nname = \"chosen\"\nhandler = \"crun\"\n"

// TestRuntimeClassOnTheCommandLine creates and lists by class.
func TestRuntimeClassOnTheCommandLine(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{Settings: classSettings})
	c := newCommandLine(t, s.URL)
	if got := c.must(t, "run", "-q", "--runtime-class", "chosen", busyboxImage, "--", "echo", "hello"); got != "hello\n" {
		t.Errorf("run printed %q", got)
	}
	c.must(t, "create", "--runtime-class", "chosen", "--name", "with", busyboxImage)
	c.must(t, "create", "--name", "without", busyboxImage)
	for line := range strings.Lines(c.must(t, "ls", "-o", "wide")) {
		if strings.Contains(line, " chosen ") != strings.Contains(line, " with ") {
			t.Errorf("the list shows %s", line)
		}
	}
	if got := c.must(t, "get", "with", "-o", "yaml"); !strings.Contains(got, "runtimeClass: chosen\n") {
		t.Errorf("get shows\n%s", got)
	}
	if got := c.must(t, "version", "-o", "json"); !strings.Contains(got, `"chosen"`) {
		t.Errorf("the version has no classes: %s", got)
	}
	got := c.run(t, "", "create", "--runtime-class", "other", busyboxImage)
	if got.code != 1 || !strings.Contains(got.stderr, "the classes are chosen") {
		t.Errorf("an unknown class: %v", got)
	}
}

package clients_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/creack/pty"
	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// sshClient runs the programs of an OpenSSH client with what ssh-config prints.
type sshClient struct {
	*commandLine
	config, host string
}

// newSSHClient creates a sandbox with the name "box", and returns a client of it.
func newSSHClient(t *testing.T) *sshClient {
	t.Helper()
	c := newCommandLine(t, startWithPython(t, conformance.Plan{}).URL)
	c.must(t, "create", "--name", "box", pythonImage)
	conformance.Write(t, c.directory, "config", c.must(t, "ssh-config"))
	return &sshClient{commandLine: c, config: filepath.Join(c.directory, "config"), host: "box.sandbox"}
}

func (c *sshClient) command(t *testing.T, program string, args ...string) *exec.Cmd {
	command := wait.Command(t, program, append([]string{"-F", c.config}, args...)...)
	command.Dir, command.Env = c.directory, c.env
	return command
}

func (c *sshClient) run(t *testing.T, stdin io.Reader, program string, args ...string) outcome {
	t.Helper()
	command := c.command(t, program, args...)
	var stdout, stderr bytes.Buffer
	command.Stdin, command.Stdout, command.Stderr = stdin, &stdout, &stderr
	var exit *exec.ExitError
	if err := command.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s: %v\n%s", command, err, stderr.String())
	}
	return outcome{command.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// succeed runs a program that must succeed and print no error.
func (c *sshClient) succeed(t *testing.T, stdin, program string, args ...string) string {
	t.Helper()
	got := c.run(t, strings.NewReader(stdin), program, args...)
	if got.code != 0 || got.stderr != "" {
		t.Fatalf("%s %q: exit code %d\n%s%s", program, args, got.code, got.stdout, got.stderr)
	}
	return got.stdout
}

// inside returns what a line of shell prints in the sandbox, without SSH.
func (c *sshClient) inside(t *testing.T, line string) string {
	t.Helper()
	return c.must(t, "exec", "box", "--", "sh", "-c", line)
}

func randomBytes(t *testing.T, n int) []byte {
	t.Helper()
	random := make([]byte, n)
	if _, err := rand.Read(random); err != nil {
		t.Fatal(err)
	}
	return random
}

// TestSSH reaches a sandbox with the programs of an OpenSSH client.
func TestSSH(t *testing.T) {
	t.Parallel()
	c := newSSHClient(t)
	for name, test := range map[string]func(*testing.T, *sshClient){
		"commands": sshCommands, "standard input": sshStdin, "terminal": sshTerminal, "tool": sshTool,
		"clients that leave": sshLeaves, "forwarding": sshForwarding, "channels": sshChannels,
		"files": sshFiles, "directories": sshDirectories, "sftp": sshSFTP, "links": sshLinks,
	} {
		t.Run(name, func(t *testing.T) { test(t, c) })
	}
	t.Run("end", func(t *testing.T) { sshEnd(t, c) })
}

func sshCommands(t *testing.T, c *sshClient) {
	for range 2 { // the second time, too, a client says nothing of the host key
		got := c.run(t, nil, "ssh", "-o", "SetEnv COLOR=blue", c.host, `echo out $COLOR; echo err >&2; exit 3`)
		if want := (outcome{3, "out blue\n", "err\n"}); got != want {
			t.Errorf("it is %+v, want %+v", got, want)
		}
	}
	if got := c.run(t, nil, "ssh", c.host, "kill -9 $$"); got.code != 137 || got.stderr != "" {
		t.Errorf("of a command that SIGKILL ended it is %+v", got)
	}
	if got := c.run(t, nil, "ssh", "no'; echo $((40+2)); '.sandbox", "true"); got.code != 255 || strings.Contains(got.stdout+got.stderr, "42") {
		t.Errorf("for a host with quotes it is %+v", got)
	}
	got := c.run(t, nil, "ssh", "none.sandbox", "true")
	if got.code != 255 || !strings.Contains(got.stderr, `there is no sandbox "none"`) {
		t.Errorf("for a sandbox that does not exist it is %+v", got)
	}
}

func sshStdin(t *testing.T, c *sshClient) {
	random := randomBytes(t, 6<<20+1)
	got := c.run(t, bytes.NewReader(random), "ssh", c.host, "cat")
	if got.stdout != string(random) || got.code != 0 || got.stderr != "" {
		t.Errorf("%d bytes came back of %d, other ones or with an error: %d %s", len(got.stdout), len(random), got.code, got.stderr)
	}
	if got := c.succeed(t, "echo $((6*7))\n", "ssh", "-T", c.host); got != "42\n" {
		t.Errorf("a shell without a terminal printed %q", got)
	}
	if got := c.run(t, strings.NewReader("exit 5\n"), "ssh", "-T", c.host); got.code != 5 {
		t.Errorf("a shell without a terminal ended with %+v", got)
	}
	// A command that reads no further ends the standard input only.
	if got := c.run(t, bytes.NewReader(random), "ssh", c.host, "head -c 3 | wc -c"); got.stdout != "3\n" || got.code != 0 {
		t.Errorf("of a command that reads three bytes it is %+v", got)
	}
}

func sshTerminal(t *testing.T, c *sshClient) {
	command := c.command(t, "ssh", "-tt", c.host)
	command.Env = append(slices.Clone(command.Env), "TERM=vt220")
	s, terminal := c.beginOnTerminal(t, 93, command)
	s.send(t, "stty size; echo term-$TERM\r")
	s.await(t, "24 93")
	s.await(t, "term-vt220")
	if err := pty.Setsize(terminal, &pty.Winsize{Rows: 31, Cols: 77}); err != nil {
		t.Fatal(err)
	}
	s.send(t, "while [ \"$(stty size)\" != '31 77' ]; do sleep 0.1; done; echo resized-$((40+2))\r")
	s.await(t, "resized-42")
	s.send(t, "exit 7\r")
	s.end(t, 7)
	s, _ = c.beginOnTerminal(t, 80, c.command(t, "ssh", "-tt", c.host, "test -t 0 && echo on-a-terminal; exit 4"))
	s.await(t, "on-a-terminal")
	s.end(t, 4)
}

// sshTool is `sandbox ssh`.
func sshTool(t *testing.T, c *sshClient) {
	if got := c.commandLine.run(t, "", "ssh", "--user", "1000:1000", "box", "--", "id", "-u"); got != (outcome{0, "1000\n", ""}) {
		t.Errorf("as another user it is %+v", got)
	}
	if got := c.commandLine.run(t, "", "ssh", "box", "--", "exit", "9"); got.code != 9 {
		t.Errorf("it is %+v", got)
	}
	if got := c.commandLine.run(t, "in\n", "ssh", "box", "cat"); got != (outcome{0, "in\n", ""}) {
		t.Errorf("it is %+v", got)
	}
	if got := c.commandLine.run(t, "", "ssh", "none"); got.code != 125 || !strings.Contains(got.stderr, `there is no sandbox "none"`) {
		t.Errorf("for a sandbox that does not exist it is %+v", got)
	}
	if got := c.commandLine.run(t, "", "--api-key", "secret", "ssh-config"); got.code != 2 || strings.Contains(got.stdout, "secret") {
		t.Errorf("with a key it is %+v", got)
	}
}

func sshLeaves(t *testing.T, c *sshClient) {
	running := func(mark string) int {
		n, err := strconv.Atoi(strings.TrimSpace(c.inside(t, "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -cx "+mark+"[1] || true")))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for mark, args := range map[string][]string{"9876": {c.host}, "8765": {"-tt", c.host}} {
		s := c.begin(t, c.command(t, "ssh", append(args, "echo began; exec sleep "+mark+"1")...))
		s.await(t, "began")
		if running(mark) != 1 {
			t.Fatal("the command does not run")
		}
		s.kill()
		wait.Until(t, "the command has ended", func() bool { return running(mark) == 0 })
	}
}

// sshChannels has many sessions on one connection.
func sshChannels(t *testing.T, c *sshClient) {
	master := c.begin(t, c.command(t, "ssh", "-N", "-M", "-S", "socket", c.host))
	wait.Until(t, "the master answers", func() bool {
		return c.run(t, nil, "ssh", "-S", "socket", "-O", "check", c.host).code == 0
	})
	var sessions sync.WaitGroup
	for i := range 24 {
		sessions.Go(func() {
			want := fmt.Sprintf("%d-%d\n", i, i)
			if got := c.run(t, strings.NewReader(want), "ssh", "-S", "socket", c.host, "cat; exit "+strconv.Itoa(i)); got != (outcome{i, want, ""}) {
				t.Errorf("session %d is %+v", i, got)
			}
		})
	}
	sessions.Wait()
	c.run(t, nil, "ssh", "-S", "socket", "-O", "exit", c.host)
	wait.For(t, "the end of the master", master.ended)
}

// sshEnd: sessions end with an error when their sandbox does.
func sshEnd(t *testing.T, c *sshClient) {
	command := c.begin(t, c.command(t, "ssh", c.host, "echo began; exec sleep 98765"))
	terminal, _ := c.beginOnTerminal(t, 80, c.command(t, "ssh", "-tt", c.host, "echo began; exec sleep 98765"))
	command.await(t, "began")
	terminal.await(t, "began")
	c.must(t, "rm", "box")
	for name, s := range map[string]*session{"command": command, "terminal": terminal} {
		wait.For(t, "the end of the "+name, s.ended)
		// 255, or that of the signal with which the daemon ended the program.
		if code := s.ProcessState.ExitCode(); code <= 128 {
			t.Errorf("the %s ended with %d: %s", name, code, s.text())
		}
	}
	if got := c.run(t, nil, "ssh", c.host, "true"); got.code != 255 || got.stderr == "" {
		t.Errorf("of a sandbox that has ended it is %+v", got)
	}
}

// TestSSHMemory: however much a sandbox sends, the proxy keeps little of it.
func TestSSHMemory(t *testing.T) {
	t.Parallel()
	const (
		large  = 192 << 20
		enough = 96 << 20
	)
	c := newSSHClient(t)
	c.inside(t, fmt.Sprintf("truncate -s %d /tmp/large && truncate -s 4T /tmp/huge", large))
	proxy := wait.Command(t, c.program, "ssh-proxy", "box")
	proxy.Dir, proxy.Env = c.directory, c.env
	ours, theirs := net.Pipe()
	if err := ours.SetDeadline(wait.Deadline()); err != nil { // also where the proxy ends
		t.Fatal(err)
	}
	proxy.Stdin, proxy.Stdout, proxy.Stderr = theirs, theirs, os.Stderr
	if err := proxy.Start(); err != nil {
		t.Fatal(err)
	}
	conn, channels, requests, err := ssh.NewClientConn(ours, "box", &ssh.ClientConfig{HostKeyCallback: ssh.InsecureIgnoreHostKey()}) //nolint:gosec // a pipe
	if err != nil {
		t.Fatal(err)
	}
	client := ssh.NewClient(conn, channels, requests)

	run, err := client.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	output := &counter{}
	run.Stdout = output
	if err := run.Run(fmt.Sprintf("head -c %d /dev/zero", large)); err != nil || output.n != large {
		t.Errorf("%d bytes of output came, %v", output.n, err)
	}
	files, err := sftp.NewClient(client)
	if err != nil {
		t.Fatal(err)
	}
	file, err := files.Open("/tmp/large")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := file.WriteTo(io.Discard); err != nil || n != large {
		t.Errorf("%d bytes of the file came, %v", n, err)
	}
	huge, err := files.Open("/tmp/huge")
	if err != nil {
		t.Fatal(err)
	}
	for _, offset := range []int64{0, 1 << 40, 100, 3 << 40, 1<<42 - 5} {
		if n, err := huge.ReadAt(make([]byte, 5), offset); err != nil || n != 5 {
			t.Errorf("%d bytes at %d came, %v", n, offset, err)
		}
	}
	if n, err := huge.ReadAt(make([]byte, 5), 1<<42); !errors.Is(err, io.EOF) || n != 0 {
		t.Errorf("%d bytes behind the end came, %v", n, err)
	}
	if _, err := files.OpenFile("/tmp/huge", os.O_WRONLY); err == nil {
		t.Error("a file of 4 TiB is opened to be changed")
	}
	t.Logf("%d MiB of memory", highWater(t, proxy.Process.Pid)>>20)
	if used := highWater(t, proxy.Process.Pid); used > enough {
		t.Errorf("the proxy used %d bytes of memory, want %d at most", used, enough)
	}
	_ = files.Close()
	_ = client.Close()
	_ = proxy.Wait() // an error of the pipe
}

// counter counts bytes.
type counter struct{ n int64 }

// Write implements io.Writer.
func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

// highWater returns the most memory that a process has had at a time, in bytes.
func highWater(t *testing.T, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	var kilobytes int64
	if _, err := fmt.Sscanf(rest, "%d kB", &kilobytes); err != nil {
		t.Fatal(err)
	}
	return kilobytes << 10
}

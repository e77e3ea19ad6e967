package terminal_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"sandbox.internal/execd/internal/invalid"
	"sandbox.internal/execd/terminal"
	"sandbox.internal/test/wait"
)

func TestShellTalks(t *testing.T) {
	t.Parallel()
	shell := start(t, newManager(t), terminal.Spec{})
	s := attach(t, shell)
	enter(t, shell, "echo $((6*7))-fold\r")
	s.until("42-fold")
	enter(t, shell, "exit 3\r")
	s.end()
	if code := exitCode(t, shell); code != 3 {
		t.Errorf("the exit code is %d, want 3", code)
	}
}

func TestWhatTheProgramFinds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m := newManager(t, "EXECD_TOKEN=secret", "TERM=dumb", "GREETING=hello")
	for name, tc := range map[string]struct {
		spec terminal.Spec
		want string
	}{
		"a terminal":      {sh("test -t 0 && test -t 1 && test -t 2 && echo yes"), "yes"},
		"its type":        {sh(`echo "<$TERM>"`), "<xterm-256color>"},
		"no secret":       {sh(`echo "<$EXECD_TOKEN>"`), "<>"},
		"the environment": {sh(`echo "<$GREETING>"`), "<hello>"},
		"the usual size":  {sh("stty size"), "24 80"},
		"its own size":    {terminal.Spec{Command: "stty", Args: []string{"size"}, Rows: 50, Cols: 132}, "50 132"},
		"its directory":   {terminal.Spec{Command: "pwd", Dir: dir}, dir},
		"its variables":   {terminal.Spec{Command: "env", Env: map[string]string{"TERM": "vt100", "A": "b=c"}}, "A=b=c"},
		"its own type":    {terminal.Spec{Command: "env", Env: map[string]string{"TERM": "vt100"}}, "TERM=vt100"},
		"its arguments":   {terminal.Spec{Command: "/bin/echo", Args: []string{"a b", "c"}}, "a b c"},
	} {
		t.Run(name, func(t *testing.T) {
			s := attach(t, start(t, m, tc.spec))
			s.end()
			if !strings.Contains(string(s.text), tc.want) {
				t.Errorf("the screen shows %q, want %q", s.text, tc.want)
			}
		})
	}
}

// Who types into a terminal types UTF-8: the kernel erases whole characters, and programs have a
// locale for it unless one is set.
func TestTerminalsAreForUTF8(t *testing.T) {
	m := newManager(t, "LC_ALL=", "LC_CTYPE=", "LANG=")
	typed := start(t, m, terminal.Spec{Command: "sh", Args: []string{"-c", `stty -echo; echo ready; read -r line; echo "<$line>"`}})
	s := attach(t, typed)
	s.until("ready")
	if err := typed.Type(t.Context(), []byte("a\u00e9\x7fb\u20ac\U0001f600\x7f\r")); err != nil {
		t.Fatal(err)
	}
	s.until("<ab\u20ac>")
	for _, test := range []struct {
		env  map[string]string
		want string
	}{
		{nil, "<||C.UTF-8>"},
		{map[string]string{"LANG": "de_DE.ISO-8859-1"}, "<||de_DE.ISO-8859-1>"},
		{map[string]string{"LC_ALL": "C"}, "<C||>"},
		{map[string]string{"LC_CTYPE": "POSIX"}, "<|POSIX|>"},
	} {
		spec := sh(`echo "<$LC_ALL|$LC_CTYPE|$LANG>"`)
		spec.Env = test.env
		attach(t, start(t, m, spec)).until(test.want)
	}
}

func TestRefusedSpecs(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	file := filepath.Join(t.TempDir(), "not-a-program")
	if err := os.WriteFile(file, []byte("x"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		spec terminal.Spec
		says string
	}{
		"unknown program":       {terminal.Spec{Command: "no-such-program"}, "command"},
		"missing file":          {terminal.Spec{Command: "/no/such/program"}, "command"},
		"a file of text":        {terminal.Spec{Command: file}, "command"},
		"a directory":           {terminal.Spec{Command: "/"}, "command"},
		"NUL in the command":    {terminal.Spec{Command: "/bin/sh\x00"}, "command"},
		"arguments for nothing": {terminal.Spec{Args: []string{"x"}}, "args"},
		"NUL in an argument":    {terminal.Spec{Command: "echo", Args: []string{"a", "b\x00"}}, "args/1"},
		"missing directory":     {terminal.Spec{Dir: "/no/such/directory"}, "cwd"},
		"bad variable":          {terminal.Spec{Env: map[string]string{"A=B": "c"}}, "envs"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := m.Start(tc.spec)
			if !invalid.Is(err) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, want an invalid.Error that says %q", err, tc.says)
			}
		})
	}
	if left := m.List(); len(left) > 0 {
		t.Errorf("refused terminals are listed: %v", left)
	}
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	for script, want := range map[string]int{"true": 0, "exit 7": 7, "kill -9 $$": 137} {
		if got := exitCode(t, start(t, m, sh(script))); got != want {
			t.Errorf("%s: exit code %d, want %d", script, got, want)
		}
	}
}

func TestResize(t *testing.T) {
	t.Parallel()
	shell := start(t, newManager(t), sh(`trap 'stty size' WINCH; echo ready; while :; do read x; done`))
	s := attach(t, shell)
	s.until("ready")
	if err := shell.Resize(41, 123); err != nil {
		t.Fatal(err)
	}
	enter(t, shell, "\n") // a shell runs its traps between commands
	s.until("41 123")
	if status := shell.Status(); status.Rows != 41 || status.Cols != 123 {
		t.Errorf("the status is %+v", status)
	}
	if err := shell.Resize(0, 1); !invalid.Is(err) {
		t.Errorf("a size of nothing gives %v", err)
	}
}

func TestViewersSeeTheSame(t *testing.T) {
	t.Parallel()
	shell := start(t, newManager(t), sh(`read x; seq 1 5000; read x`))
	one, two := attach(t, shell), attach(t, shell)
	if status := shell.Status(); status.Viewers != 2 {
		t.Errorf("%d viewers, want 2", status.Viewers)
	}
	enter(t, shell, "\n")
	one.until("\n5000\r\n")
	two.until("\n5000\r\n")
	late := attach(t, shell)
	late.until("\n5000\r\n")
	if !bytes.Equal(one.text, two.text) || !bytes.Equal(one.text, late.text) {
		t.Error("the viewers do not see the same")
	}
	enter(t, shell, "\n")
	for _, s := range []*screen{one, two, late} {
		s.end()
	}
	after := attach(t, shell)
	after.end()
	if !bytes.Equal(one.text, after.text) {
		t.Error("who comes after the end does not see the same")
	}
}

func TestSlowViewerStartsAnew(t *testing.T) {
	t.Parallel()
	shell := start(t, newManager(t), sh(`echo first; read x; seq 1 300000; echo done`))
	slow := attach(t, shell)
	slow.until("first")
	enter(t, shell, "\n")
	// The program ends although this viewer reads nothing.
	if code := exitCode(t, shell); code != 0 {
		t.Errorf("exit code %d", code)
	}
	slow.end()
	if slow.replays != 2 {
		t.Errorf("%d replays, want a second one", slow.replays)
	}
	lines := strings.Split(string(slow.text), "\r\n")
	first, err := strconv.Atoi(lines[0])
	if err != nil || len(slow.text) > 256<<10 || len(slow.text) < 255<<10 {
		t.Fatalf("%d bytes that begin with %q", len(slow.text), lines[0])
	}
	for i := range 300000 - first + 1 {
		if lines[i] != strconv.Itoa(first+i) {
			t.Fatalf("line %d of the replay is %q", i, lines[i])
		}
	}
	if !strings.HasSuffix(string(slow.text), "300000\r\ndone\r\n") {
		t.Errorf("the end is %q", tail(slow.text))
	}
}

func TestPasteOfAMegabyte(t *testing.T) {
	t.Parallel()
	text := strings.Repeat(strings.Repeat("0123456789", 10)+"\n", 1<<20/101+1)
	sum := sh(fmt.Sprintf(`stty raw -echo; echo ready; head -c %d | cksum; read x`, len(text)))
	shell := start(t, newManager(t), sum)
	s := attach(t, shell)
	s.until("ready")
	enter(t, shell, text)
	s.until(fmt.Sprintf(" %d", len(text)))
}

func TestTypingIsCalledOff(t *testing.T) {
	t.Parallel()
	// In raw mode the kernel throws nothing away: it makes the writer wait.
	shell := start(t, newManager(t), sh(`stty raw; echo ready; sleep 1000`))
	attach(t, shell).until("ready")
	ctx, cancel := context.WithCancel(t.Context())
	typed := make(chan error, 2)
	for range 2 {
		go func() { typed <- shell.Type(ctx, make([]byte, 1<<20)) }()
	}
	select {
	case err := <-typed:
		t.Fatalf("a program that reads nothing took a megabyte: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	cancel()
	for range 2 {
		if err := wait.For(t, "the end of a write", typed); !errors.Is(err, context.Canceled) {
			t.Errorf("typing ended with %v", err)
		}
	}
}

func TestAnotherUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Fatal("needs root, to change users")
	}
	m := newManager(t, "HOME=/daemon")
	other, err := user.LookupId("65534")
	if err != nil {
		t.Fatal(err)
	}
	id := func(n uint32) *uint32 { return &n }
	// What opens the terminal by its name needs to own it: so do screen, script and su.
	const whoami = `echo "$(id -u):$(id -g):$HOME"; t=$(tty); echo "by name" >$t; echo "at all" >/dev/tty; stat -c 'owner %u' $t`
	for name, tc := range map[string]struct {
		uid, gid *uint32
		want     string
	}{
		"a user":                {id(65534), nil, "65534:65534:" + other.HomeDir + "\nby name\nat all\nowner 65534\n"},
		"a user and a group":    {id(65534), id(7), "65534:7:" + other.HomeDir + "\nby name\nat all\nowner 65534\n"},
		"a user without a name": {id(4242), nil, "4242:4242:/daemon\nby name\nat all\nowner 4242\n"},
		"the daemon's":          {nil, nil, "0:0:/daemon\nby name\nat all\nowner 0\n"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := sh(whoami)
			spec.UID, spec.GID, spec.Dir = tc.uid, tc.gid, "/"
			s := attach(t, start(t, m, spec))
			s.end()
			if got := string(s.text); got != line(tc.want) {
				t.Errorf("the screen shows %q, want %q", got, line(tc.want))
			}
		})
	}
	private := t.TempDir()
	if err := os.Chmod(private, 0o700); err != nil {
		t.Fatal(err)
	}
	_, err = m.Start(terminal.Spec{Dir: private, UID: id(65534)})
	if !invalid.Is(err) || !strings.Contains(err.Error(), "cwd") {
		t.Errorf("a directory that the user may not enter: %v", err)
	}
}

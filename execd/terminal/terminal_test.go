package terminal_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
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
		"its folder":      {terminal.Spec{Command: "pwd", Dir: dir}, dir},
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
		"a folder":              {terminal.Spec{Command: "/"}, "command"},
		"NUL in the command":    {terminal.Spec{Command: "/bin/sh\x00"}, "command"},
		"arguments for nothing": {terminal.Spec{Args: []string{"x"}}, "args"},
		"NUL in an argument":    {terminal.Spec{Command: "echo", Args: []string{"a", "b\x00"}}, "args/1"},
		"missing folder":        {terminal.Spec{Dir: "/no/such/folder"}, "cwd"},
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
		if err := <-typed; !errors.Is(err, context.Canceled) {
			t.Errorf("typing ended with %v", err)
		}
	}
}

func TestKill(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	for name, tc := range map[string]struct {
		spec  terminal.Spec
		type_ string
		code  int
		slow  bool
	}{
		"a program":               {spec: sh("echo ready; exec sleep 1000"), code: 129},
		"a shell":                 {spec: terminal.Spec{}, type_: "echo rea''dy; sleep 1000\r", code: 129},
		"a program that will not": {spec: sh("trap '' HUP; echo ready; sleep 1000"), code: 137, slow: true},
		"a stopped program":       {spec: sh("echo ready; kill -STOP $$; sleep 1000"), code: 129},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			running := start(t, m, tc.spec)
			if tc.type_ != "" {
				enter(t, running, tc.type_)
			}
			attach(t, running).until("ready\r\n")
			begin := time.Now()
			if err := m.Kill(running.ID()); err != nil {
				t.Fatal(err)
			}
			if code := exitCode(t, running); code != tc.code {
				t.Errorf("exit code %d, want %d", code, tc.code)
			}
			if took := time.Since(begin); tc.slow && took < 1900*time.Millisecond {
				t.Errorf("the program was killed after %v", took)
			}
			if err := m.Kill(running.ID()); err != nil {
				t.Errorf("killing it again: %v", err)
			}
		})
	}
}

// A shell ends at the signal; the program that it waits for may have something to finish.
func TestKillLetsTheGroupEnd(t *testing.T) {
	t.Parallel()
	saved := filepath.Join(t.TempDir(), "saved")
	m := newManager(t)
	// The kernel sends a second SIGHUP when the shell has ended.
	shell := start(t, m, sh(`sh -c 'trap "trap \"\" HUP; sleep 0.2; touch `+saved+`; exit" HUP; echo ready; while :; do sleep 0.01; done' & wait`))
	attach(t, shell).until("ready")
	if err := m.Kill(shell.ID()); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(t, shell); code != 129 {
		t.Errorf("exit code %d, want 129", code)
	}
	if _, err := os.Stat(saved); err != nil {
		t.Errorf("the program was killed before it had its time: %v", err)
	}
}

// A shell's foreground job is in a group of its own, and may outlive the shell.
func TestKillReachesTheForeground(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	shell := start(t, m, terminal.Spec{Command: "bash", Args: []string{"--norc"}})
	s := attach(t, shell)
	enter(t, shell, `sh -c 'trap "" HUP; echo pid=$$=; sleep 1000'`+"\r")
	var pid int
	for pid == 0 {
		if err := s.next(); err != nil {
			t.Fatal(err)
		}
		for part := range strings.SplitSeq(string(s.text), "pid=") {
			if number, _, ok := strings.Cut(part, "="); ok {
				pid, _ = strconv.Atoi(number)
			}
		}
	}
	if err := m.Kill(shell.ID()); err != nil {
		t.Fatal(err)
	}
	exitCode(t, shell)
	wait.Until(t, fmt.Sprintf("process %d is gone", pid), func() bool { return gone(pid) })
}

// gone reports whether a process has ended; one that has not been waited for counts.
func gone(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || bytes.Contains(stat, []byte(") Z ")) || syscall.Kill(pid, 0) != nil
}

// TestLastOutputOutlivesTheDrainTime: a daemon that does not run for that long, on a busy machine,
// still shows all of it.
func TestLastOutputOutlivesTheDrainTime(t *testing.T) {
	terminal.SetDrainTime(t, time.Nanosecond)
	m := newManager(t)
	for range 50 {
		s := attach(t, start(t, m, sh(`head -c 12000 /dev/zero | tr '\0' x`)))
		s.end()
		if len(s.text) != 12000 {
			t.Fatalf("the screen shows %d bytes, want 12000", len(s.text))
		}
	}
}

func TestBackgroundDoesNotHoldTheEnd(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	release := filepath.Join(folder, "release")
	// The background ends with the folder, too, which the test may remove before the background
	// sees the file.
	running := start(t, newManager(t), sh(`(trap '' HUP; while test -d `+folder+` && ! test -e `+release+`; do sleep 0.05; done; echo late) & echo last`))
	s := attach(t, running)
	s.end() // while the background still waits
	if err := os.WriteFile(release, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := string(s.text); got != line("last\n") {
		t.Errorf("the screen shows %q", got)
	}
}

func TestEndedTerminalsAreForgotten(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	var ids []string
	for range 40 {
		ended := start(t, m, terminal.Spec{Command: "true"})
		exitCode(t, ended)
		ids = append(ids, ended.ID())
	}
	wait.Until(t, "32 terminals are remembered", func() bool { return len(m.List()) == 32 }, func() any { return len(m.List()) })
	if _, err := m.Get(ids[0]); !errors.Is(err, terminal.ErrNotFound) {
		t.Errorf("the oldest: %v", err)
	}
	var listed []string
	for _, each := range m.List() {
		listed = append(listed, each.ID())
	}
	if !slices.Equal(listed, ids[8:]) {
		t.Error("the list is not that of the youngest, in order")
	}
	if err := m.Kill("no-such-id"); !errors.Is(err, terminal.ErrNotFound) {
		t.Errorf("killing an unknown one: %v", err)
	}
}

// Arguments can be as long as the histories of many terminals: those that have ended are forgotten
// by bytes, too.
func TestEndedTerminalsAreForgottenByBytes(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	long := make([]string, 12)
	for i := range long {
		long[i] = strings.Repeat("x", 100<<10)
	}
	var ids []string
	for range 12 { // 14 MiB of arguments
		ended := start(t, m, terminal.Spec{Command: "true", Args: long})
		exitCode(t, ended)
		ids = append(ids, ended.ID())
	}
	wait.Until(t, "6 terminals are remembered", func() bool { return len(m.List()) == 6 }, func() any { return len(m.List()) })
	if _, err := m.Get(ids[11]); err != nil {
		t.Errorf("the youngest: %v", err)
	}
}

func TestStop(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	obstinate := start(t, m, sh("trap '' HUP; echo ready; sleep 1000"))
	attach(t, obstinate).until("ready")
	now, cancel := context.WithCancel(t.Context())
	cancel()
	m.Stop(now)
	if code := exitCode(t, obstinate); code != 137 {
		t.Errorf("exit code %d, want 137", code)
	}
	if _, err := m.Start(terminal.Spec{}); !errors.Is(err, terminal.ErrClosed) {
		t.Errorf("a stopped manager starts: %v", err)
	}
}

func TestNoDescriptorStays(t *testing.T) {
	m := newManager(t)
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	exitCode(t, start(t, m, terminal.Spec{Command: "true"}))
	before := open()
	for range 20 {
		attached := start(t, m, terminal.Spec{Command: "true"})
		attach(t, attached).end()
	}
	if after := open(); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
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
		t.Errorf("a folder that the user may not enter: %v", err)
	}
}

func TestTimeout(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	ended := func(shell *terminal.Terminal) *int {
		t.Helper()
		wait.For(t, "the end of the terminal", shell.Done())
		return shell.Status().ExitCode
	}
	for name, script := range map[string]string{
		"a program that hangs up":        "sleep 1000",
		"a program that ends well":       "trap 'exit 0' HUP; while :; do sleep 0.01; done",
		"a program that ignores signals": "trap '' HUP; while :; do sleep 0.01; done",
	} {
		spec := sh(script)
		spec.Timeout = 200 * time.Millisecond
		if code := ended(start(t, m, spec)); code != nil {
			t.Errorf("%s: exit code %d", name, *code)
		}
	}
	spec := sh("exit 3")
	spec.Timeout = wait.Patience()
	if code := ended(start(t, m, spec)); code == nil || *code != 3 {
		t.Errorf("a program that ends in time: %v", code)
	}
}

// TestTimeoutInAFrozenSandbox: a program that was stopped must not run, not even to notice its end.
func TestTimeoutInAFrozenSandbox(t *testing.T) {
	t.Parallel()
	noticed := filepath.Join(t.TempDir(), "noticed")
	m := terminal.New(terminal.Options{
		Dir: t.TempDir(), Env: os.Environ(), Clock: time.Now,
		Enter: func() (func(), error) { return nil, errors.New("frozen") },
	})
	spec := sh("trap 'touch " + noticed + "' HUP; kill -STOP $$; sleep 1000")
	spec.Timeout = 300 * time.Millisecond
	began := time.Now()
	stopped := start(t, m, spec)
	wait.For(t, "the end of the terminal", stopped.Done())
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("the terminal ended after %v", took)
	}
	if code := stopped.Status().ExitCode; code != nil {
		t.Errorf("exit code %d", *code)
	}
	if _, err := os.Stat(noticed); err == nil {
		t.Error("the program ran")
	}
}

package command_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sandbox.internal/execd/command"
	"sandbox.internal/execd/internal/eventlog"
	"sandbox.internal/execd/internal/invalid"
	"sandbox.internal/test/wait"
)

// elsewhere reports whether the test already runs in the process that it needs. Where it does not,
// elsewhere runs it there: the test's own program in a mount namespace of its own, with these
// attributes.
func elsewhere(t *testing.T, attributes syscall.SysProcAttr) bool {
	t.Helper()
	if os.Getenv("TEST_ELSEWHERE") == t.Name() {
		return true
	}
	if os.Geteuid() != 0 {
		t.Fatal("needs root, to change users and to mount")
	}
	attributes.Cloneflags, attributes.Pdeathsig = syscall.CLONE_NEWNS, syscall.SIGKILL
	process := wait.Command(t, "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	process.Env = append(os.Environ(), "TEST_ELSEWHERE="+t.Name())
	process.SysProcAttr = &attributes
	said, err := process.CombinedOutput()
	if err != nil || !strings.Contains(string(said), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, said)
	}
	return false
}

// put lays a file with that content over the one at path, for this process's mount namespace.
func put(t *testing.T, path, content string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	err := os.WriteFile(file, []byte(content), 0o644)
	if err == nil {
		err = syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "")
	}
	if err == nil {
		err = syscall.Mount(file, path, "", syscall.MS_BIND, "")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Unmount(path, syscall.MNT_DETACH) })
}

func stdout(t *testing.T, m *command.Manager, spec command.Spec) string {
	t.Helper()
	return rebuild(all(t, start(t, m, spec)), eventlog.TypeStdout)
}

func TestAnotherUserMayOpenItsOutput(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root, to change users")
	}
	m := newManager(t)
	for name, spec := range map[string]command.Spec{
		"user of the request":      {Command: "echo out >/dev/stdout; echo err >/dev/stderr; echo more >>/proc/self/fd/1", UID: new(uint32(65534)), Dir: "/"},
		"group of the request":     {Command: "echo out >/dev/stdout; echo err >/dev/stderr; echo more >>/proc/self/fd/1", GID: new(uint32(65534)), Dir: "/"},
		"read and write":           {Command: "exec 3<>/dev/stdout; echo out >&3; echo err >/dev/stderr; echo more", UID: new(uint32(65534)), Dir: "/"},
		"user that it changes to":  {Command: "setpriv --reuid=65534 --regid=65534 --clear-groups sh -c 'echo out >/dev/stdout; echo err >/dev/stderr; echo more'", Dir: "/"},
		"the daemon's, as always":  {Command: "echo out >/dev/stdout; echo err >/dev/stderr; echo more", Dir: "/"},
		"a user without a name":    {Command: "echo out >/dev/stdout; echo err >/dev/stderr; echo more", UID: new(uint32(4242)), Dir: "/"},
		"user that it changes off": {Command: "setpriv --reuid=1234 --clear-groups sh -c 'echo out >/dev/stdout; echo err >/dev/stderr; echo more'", UID: new(uint32(0)), Dir: "/"},
	} {
		events := all(t, start(t, m, spec))
		if out, err := rebuild(events, eventlog.TypeStdout), rebuild(events, eventlog.TypeStderr); out != "out\nmore\n" || err != "err\n" {
			t.Errorf("%s: stdout %q, stderr %q", name, out, err)
		}
	}
}

func TestUserBringsItsGroups(t *testing.T) {
	if !elsewhere(t, syscall.SysProcAttr{}) {
		return
	}
	put(t, "/etc/passwd", "root:x:0:0::/root:/bin/sh\nada:x:1815:1852:Ada:/home/ada:/bin/sh\n")
	put(t, "/etc/group", "root:x:0:\nengine:x:1852:\nnotes:x:2001:bob,ada\nother:x:2002:bob\nmath:x:2003:ada\n")
	if err := syscall.Setgroups([]int{7, 9}); err != nil {
		t.Fatal(err)
	}
	m := newManager(t, func(o *command.Options) { o.Env = append(o.Env, "HOME=/daemon") })
	const whoami = `echo "$(id -u):$(id -g):$(id -G | tr ' ' '\n' | sort -n | tr '\n' ' '):$HOME"`
	for _, test := range []struct {
		name     string
		uid, gid *uint32
		want     string
	}{
		{"neither: the daemon's", nil, nil, "0:0:0 7 9 :/daemon\n"},
		{"the daemon's own user: likewise", new(uint32(0)), nil, "0:0:0 7 9 :/daemon\n"},
		{"a group alone: the daemon's others stay", nil, new(uint32(5)), "0:5:5 7 9 :/daemon\n"},
		{"a user: its groups, primary and supplementary", new(uint32(1815)), nil, "1815:1852:1852 2001 2003 :/home/ada\n"},
		{"a user and a group: that group, and its others", new(uint32(1815)), new(uint32(5)), "1815:5:5 1852 2001 2003 :/home/ada\n"},
		{"a user that the image does not have", new(uint32(4242)), nil, "4242:4242:4242 :/daemon\n"},
	} {
		if got := stdout(t, m, command.Spec{Command: whoami, Dir: "/", UID: test.uid, GID: test.gid}); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
	var many strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&many, "g%d:x:%d:ada\n", i, 5000+i)
	}
	put(t, "/etc/group", many.String())
	if _, err := m.Start(command.Spec{Command: "true", UID: new(uint32(1815))}); !invalid.Is(err) || !strings.Contains(err.Error(), "1024 groups") {
		t.Errorf("a user of 2000 groups: %v", err)
	}
}

func TestDaemonThatIsNotRoot(t *testing.T) {
	if !elsewhere(t, syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534, Groups: []uint32{4242}}}) {
		return
	}
	m := newManager(t)
	for name, spec := range map[string]command.Spec{
		"its own user":           {UID: new(uint32(65534))},
		"its own group":          {GID: new(uint32(65534))},
		"its own user and group": {UID: new(uint32(65534)), GID: new(uint32(65534))},
	} {
		spec.Command = "id -u; id -G"
		if got := stdout(t, m, spec); got != "65534\n65534 4242\n" {
			t.Errorf("%s: %q", name, got)
		}
	}
	for name, spec := range map[string]command.Spec{"another user": {UID: new(uint32(0))}, "another group": {GID: new(uint32(0))}} {
		spec.Command = "true"
		if _, err := m.Start(spec); !invalid.Is(err) || !strings.Contains(err.Error(), "uid and gid:") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

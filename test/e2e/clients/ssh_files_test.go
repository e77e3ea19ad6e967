package clients_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

func sshSFTP(t *testing.T, c *sshClient) {
	conformance.Write(t, c.directory, "note", "hello\n")
	conformance.Write(t, c.directory, "longer", "hello\nworld\n")
	c.inside(t, "mkdir /tmp/full && touch /tmp/full/file && echo 'someone:x:4321:4321::/:/bin/sh' >>/etc/passwd && echo 'some:x:4322:' >>/etc/group")
	batch := strings.Join([]string{
		"mkdir /tmp/d", "cd /tmp/d", "put note a", "put note b", "chmod 600 a", "rename a b", "-mkdir /tmp/d", "ln -s b link", "ln b hard",
		"get link linked", "chown 4321 hard", "chgrp 4322 hard", "ls -l", "put longer c", "rename c d", "-rename none e", "-rmdir /tmp/full", "-rm none",
		"put note part", "reput longer part", "get part part", "rm part", "rm link", "rm hard", "rm d", "-rmdir /tmp/d", "rm b", "rmdir /tmp/d", "-ls /tmp/d",
	}, "\n")
	got := c.run(t, strings.NewReader(batch+"\n"), "sftp", "-b", "-", c.host)
	if got.code != 0 {
		t.Fatalf("it is %+v", got)
	}
	for _, line := range []string{"-rw-------", "lrwxrwxrwx"} {
		if !strings.Contains(got.stdout, line) {
			t.Errorf("the list has no %s: %s", line, got.stdout)
		}
	}
	if !slices.ContainsFunc(strings.Split(got.stdout, "\n"), func(line string) bool {
		return strings.Contains(line, "someone") && strings.Contains(line, "some ") && strings.Contains(line, "hard")
	}) {
		t.Errorf("the list has no owner: %s", got.stdout)
	}
	if failures := strings.Count(got.stderr, "\n"); failures < 6 {
		t.Errorf("of six commands that must fail the messages are: %s", got.stderr)
	}
	for file, want := range map[string]string{"linked": "hello\n", "part": "hello\nworld\n"} {
		if content, err := os.ReadFile(filepath.Join(c.directory, file)); err != nil || string(content) != want {
			t.Errorf("%s is %q, %v", file, content, err)
		}
	}
	if got := c.inside(t, "ls /tmp/full; ls -d /tmp/d 2>/dev/null || true"); got != "file\n" {
		t.Errorf("the sandbox has %q after the batch, want the file alone", got)
	}
}

func sshFiles(t *testing.T, c *sshClient) {
	random := randomBytes(t, 9<<20+7)
	source, back := filepath.Join(c.directory, "source"), filepath.Join(c.directory, "back")
	if err := os.WriteFile(source, random, 0o750); err != nil { //nolint:gosec // a mode to be copied
		t.Fatal(err)
	}
	if err := os.Chtimes(source, wait.Deadline(), wait.Deadline().Add(-1e6*1e9)); err != nil {
		t.Fatal(err)
	}
	stat, err := os.Stat(source)
	if err != nil {
		t.Fatal(err)
	}
	c.succeed(t, "", "scp", "-p", source, c.host+":/tmp/copy")
	if got, want := c.inside(t, "stat -c '%a %Y' /tmp/copy"), fmt.Sprintf("750 %d\n", stat.ModTime().Unix()); got != want {
		t.Errorf("mode and time are %q, want %q", got, want)
	}
	c.succeed(t, "", "scp", c.host+":/tmp/copy", back)
	if content, err := os.ReadFile(back); err != nil || !bytes.Equal(content, random) {
		t.Errorf("%d bytes came back, %v", len(content), err)
	}
	// A file that is there keeps its mode; a new one has that of the source, but for the umask.
	c.inside(t, "chmod 604 /tmp/copy")
	c.succeed(t, "", "scp", source, c.host+":/tmp/copy")
	c.succeed(t, "", "scp", source, c.host+":new")
	if got := c.inside(t, "stat -c %a /tmp/copy ~/new"); got != "604\n750\n" {
		t.Errorf("the modes are %q", got)
	}
	for _, args := range [][]string{
		{c.host + ":/tmp/none", back}, {c.host + ":/tmp/no/such", back}, {source, c.host + ":/tmp/no/such"},
	} {
		if got := c.run(t, nil, "scp", args...); got.code == 0 || !strings.Contains(got.stderr, "No such file") {
			t.Errorf("of %q it is %+v", args, got)
		}
	}
	if got := c.run(t, nil, "scp", c.host+":/dev/zero", back); got.code == 0 {
		t.Errorf("of a device it is %+v", got)
	}
}

// oddNames are those of files that a careless client or server would take for something else.
var oddNames = []string{"plain", "a b", "quote'", `double"`, `back\slash`, "new\nline", "$(touch made)", "*", "-rf", "ä→", "\xff\xfe", "...", ".hidden", "~", "a:b"}

// sshDirectories copies a directory whose files have odd names, there and back.
func sshDirectories(t *testing.T, c *sshClient) {
	tree := filepath.Join(c.directory, "tree")
	if err := os.MkdirAll(filepath.Join(tree, "deep", "er"), 0o755); err != nil { //nolint:gosec // a mode to be copied
		t.Fatal(err)
	}
	for _, name := range oddNames {
		conformance.Write(t, filepath.Join(tree, "deep"), name, "content of "+name)
	}
	c.succeed(t, "", "scp", "-r", tree, c.host+":/tmp")
	c.succeed(t, "", "scp", "-r", c.host+":/tmp/tree", "fetched")
	entries, err := os.ReadDir(filepath.Join(c.directory, "fetched", "deep"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
		if entry.IsDir() {
			continue
		}
		content, err := os.ReadFile(filepath.Join(c.directory, "fetched", "deep", entry.Name()))
		if err != nil || string(content) != "content of "+entry.Name() {
			t.Errorf("%q has %q, %v", entry.Name(), content, err)
		}
	}
	if want := slices.Sorted(slices.Values(append([]string{"er"}, oddNames...))); !slices.Equal(names, want) {
		t.Errorf("the names are %q, want %q", names, want)
	}
	if got := c.inside(t, "ls /tmp/tree ~ /tmp | grep -c made || true"); got != "0\n" {
		t.Error("a name was taken for a command")
	}
}

// sshLinks follows symbolic links as the kernel does.
func sshLinks(t *testing.T, c *sshClient) {
	c.inside(t, `mkdir -p /tmp/l/real/below /tmp/l/other && cd /tmp/l && echo right >real/file && echo wrong >file &&
		ln -s ../real/below other/way && ln -s ../file real/below/up && ln -s missing dangling && ln -s loop loop`)
	if got := c.succeed(t, "get /tmp/l/other/way/up up\ncd /tmp/l/other/way\nls -l\n", "sftp", "-b", "-", c.host); !strings.Contains(got, " up\n") {
		t.Errorf("the list is %q", got)
	}
	if content, err := os.ReadFile(filepath.Join(c.directory, "up")); err != nil || string(content) != "right\n" {
		t.Errorf("the file is %q, %v", content, err)
	}
	conformance.Write(t, c.directory, "through", "through\n")
	c.succeed(t, "put through /tmp/l/other/way/up\nput through /tmp/l/dangling\n", "sftp", "-b", "-", c.host)
	if got := c.inside(t, "cd /tmp/l && cat real/file file missing && readlink real/below/up dangling"); got != "through\nwrong\nthrough\n../file\nmissing\n" {
		t.Errorf("the files are %q", got)
	}
	if got := c.run(t, strings.NewReader("get /tmp/l/loop loop\n"), "sftp", "-b", "-", c.host); got.code == 0 {
		t.Errorf("of a link to itself it is %+v", got)
	}
}

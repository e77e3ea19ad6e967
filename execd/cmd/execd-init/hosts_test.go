package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestHostsWithoutIPv6: localhost is an address that can be connected to, and what else the file
// has stays.
func TestHostsWithoutIPv6(t *testing.T) {
	t.Parallel()
	const docker = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nff02::1\tip6-allnodes\n172.17.0.2\tbox\n"
	const mended = "127.0.0.1\tlocalhost\n::1\tip6-localhost ip6-loopback\nff02::1\tip6-allnodes\n172.17.0.2\tbox\n"
	for name, test := range map[string]struct{ off, hosts, want string }{
		"off":                    {"1\n", docker, mended},
		"on":                     {"0\n", docker, docker},
		"no IPv6 in the kernel":  {"", docker, mended},
		"localhost alone":        {"1\n", "::1 LOCALHOST # loopback\n127.0.0.1 localhost", "127.0.0.1 localhost"},
		"other names alone":      {"1\n", "::1 ip6-localhost\n# ::1 localhost\n", "::1 ip6-localhost\n# ::1 localhost\n"},
		"no newline at its end":  {"1\n", "127.0.0.1 localhost\n::1 localhost", "127.0.0.1 localhost\n"},
		"nothing to correct":     {"1\n", "127.0.0.1 localhost\n", "127.0.0.1 localhost\n"},
		"an empty file of hosts": {"1\n", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			directory := t.TempDir()
			hosts, off := filepath.Join(directory, "hosts"), filepath.Join(directory, "off")
			if test.off != "" {
				write(t, off, test.off)
			}
			write(t, hosts, test.hosts)
			correctHosts(hosts, off)
			if got := read(t, hosts); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// TestHostsOfTheImage: a symbolic link is not followed, and what is missing is not made.
func TestHostsOfTheImage(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	off, other, link := filepath.Join(directory, "off"), filepath.Join(directory, "other"), filepath.Join(directory, "link")
	write(t, off, "1\n")
	write(t, other, "::1 localhost\n")
	if err := os.Symlink(other, link); err != nil {
		t.Fatal(err)
	}
	correctHosts(link, off)
	correctHosts(filepath.Join(directory, "missing"), off)
	if got := read(t, other); got != "::1 localhost\n" {
		t.Errorf("the file behind a link is changed to %q", got)
	}
	if _, err := os.Lstat(filepath.Join(directory, "missing")); !os.IsNotExist(err) {
		t.Errorf("a missing file: %v", err)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

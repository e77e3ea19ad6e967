package bundle

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
)

// makeLayer makes a layer: a value is content, or after "->" the target of a link, or whiteout.
func makeLayer(t *testing.T, entries map[string]string) string {
	t.Helper()
	directory := t.TempDir()
	for name, value := range entries {
		path := filepath.Join(directory, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		switch target, isLink := strings.CutPrefix(value, "->"); {
		case isLink:
			err = os.Symlink(target, path)
		case value == "whiteout":
			err = unix.Mknod(path, unix.S_IFCHR, 0)
		case value == "opaque":
			if err = os.MkdirAll(path, 0o755); err == nil {
				err = unix.Setxattr(path, opaque, []byte("y"), 0)
			}
		case value == "fifo":
			err = unix.Mkfifo(path, 0o600)
		default:
			err = os.WriteFile(path, []byte(value), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return directory
}

func TestLayers(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		layers []map[string]string // the lowest first
		want   string              // empty: an error
	}{
		"one":                {[]map[string]string{{"etc/passwd": "a"}}, "a"},
		"upper":              {[]map[string]string{{"etc/passwd": "a"}, {"etc/passwd": "b"}}, "b"},
		"lower":              {[]map[string]string{{"etc/passwd": "a"}, {"etc/group": "b"}}, "a"},
		"whiteout":           {[]map[string]string{{"etc/passwd": "a"}, {"etc/passwd": "whiteout"}}, ""},
		"made again":         {[]map[string]string{{"etc/passwd": "a"}, {"etc/passwd": "whiteout"}, {"etc/passwd": "c"}}, "c"},
		"hidden directory":   {[]map[string]string{{"etc/passwd": "a"}, {"etc": "whiteout"}}, ""},
		"opaque directory":   {[]map[string]string{{"etc/passwd": "a"}, {"etc": "opaque"}}, ""},
		"file for directory": {[]map[string]string{{"etc/passwd": "a"}, {"etc": "text"}}, ""},
		"relative link":      {[]map[string]string{{"usr/etc/passwd": "a"}, {"etc": "->usr/etc"}}, "a"},
		"absolute link":      {[]map[string]string{{"usr/etc/passwd": "a", "etc/passwd": "->/usr/etc/passwd"}}, "a"},
		"link to a link":     {[]map[string]string{{"c": "a", "b": "->c"}, {"etc/passwd": "->../b"}}, "a"},
		"loop":               {[]map[string]string{{"etc/passwd": "->passwd"}}, ""},
		"out":                {[]map[string]string{{"etc/passwd": "->" + secret}}, ""},
		"far out":            {[]map[string]string{{"etc/passwd": "->../../../../../../../../.." + secret}}, ""},
		"directory out":      {[]map[string]string{{"etc": "->" + filepath.Dir(secret)}}, ""},
		"FIFO":               {[]map[string]string{{"etc/passwd": "fifo"}}, ""},
		"large":              {[]map[string]string{{"etc/passwd": strings.Repeat("x", maxAccounts+1)}}, ""},
		"just not large":     {[]map[string]string{{"etc/passwd": strings.Repeat("x", maxAccounts)}}, strings.Repeat("x", maxAccounts)},
		"missing":            {[]map[string]string{{}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var directories []string
			for _, entries := range test.layers {
				directories = append(directories, makeLayer(t, entries))
			}
			image, err := openLayers(directories)
			if err != nil {
				t.Fatal(err)
			}
			defer image.close()
			content, err := image.read("/etc/passwd")
			if string(content) != test.want || (err == nil) != (test.want != "") {
				if len(content) > 20 {
					content = content[:20]
				}
				t.Errorf("read %q, %v", content, err)
			}
		})
	}
}

func TestResolveUser(t *testing.T) {
	image := []string{makeLayer(t, map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\nworker:x:1000:1001::/srv/worker:/bin/sh\nbroken\nodd:x:-1:0::/:\n7:x:70:70::/seven:\n",
		"etc/group":  "root:x:0:\nworker:x:1001:\nstaff:x:50:other,worker\nextra:x:60:worker\n",
	})}
	for _, test := range []struct {
		user     string
		uid, gid uint32
		groups   []uint32
		home     string
	}{
		{"", 0, 0, []uint32{0}, "/root"},
		{"root", 0, 0, []uint32{0}, "/root"},
		{"worker", 1000, 1001, []uint32{1001, 50, 60}, "/srv/worker"},
		{"worker:", 1000, 1001, []uint32{1001, 50, 60}, "/srv/worker"},
		{"1000", 1000, 1001, []uint32{1001, 50, 60}, "/srv/worker"},
		{"worker:staff", 1000, 50, []uint32{50}, "/srv/worker"},
		{"worker:77", 1000, 77, []uint32{77}, "/srv/worker"},
		{"1234", 1234, 0, []uint32{0}, "/"},
		{"1234:staff", 1234, 50, []uint32{50}, "/"},
		{":staff", 0, 50, []uint32{50}, "/root"},
		{"7", 70, 70, []uint32{70}, "/seven"}, // a name that is a number
	} {
		got, err := resolveUser(image, test.user)
		if err != nil || got.user.UID != test.uid || got.user.GID != test.gid ||
			!slices.Equal(got.user.AdditionalGids, test.groups) || got.home != test.home {
			t.Errorf("%q: %+v, %v; want %+v", test.user, got, err, test)
		}
	}
	for _, user := range []string{"stranger", "worker:strangers", "2147483648", "-1", "odd", "1:2:3"} {
		if got, err := resolveUser(image, user); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%q: %+v, %v; want ErrInvalid", user, got, err)
		}
	}
	// An image without accounts runs as root all the same.
	if got, err := resolveUser([]string{t.TempDir()}, ""); err != nil || got.user.UID != 0 || got.home != "/" {
		t.Errorf("without accounts: %+v, %v", got, err)
	}
}

func TestCapabilities(t *testing.T) {
	for name, test := range map[string]struct {
		security engine.Security
		want     []string
	}{
		"default":  {engine.Security{}, defaultCapabilities},
		"none":     {engine.Security{DropCapabilities: []string{"ALL"}}, nil},
		"only":     {engine.Security{DropCapabilities: []string{"all"}, AddCapabilities: []string{"chown"}}, []string{"CAP_CHOWN"}},
		"all":      {engine.Security{AddCapabilities: []string{"ALL"}}, supported()},
		"re-added": {engine.Security{DropCapabilities: []string{"CHOWN"}, AddCapabilities: []string{"CAP_CHOWN"}}, defaultCapabilities},
	} {
		got, err := capabilities(test.security)
		slices.Sort(got)
		want := slices.Clone(test.want)
		slices.Sort(want)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v; want %v", name, got, err, want)
		}
	}
}

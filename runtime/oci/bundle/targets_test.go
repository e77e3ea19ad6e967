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

// TestResolve: a path leads where the kernel leads a process whose root directory is the image.
func TestResolve(t *testing.T) {
	directories := []string{
		makeLayer(t, map[string]string{
			"srv/own/x": "text", "opt": "->/var/opt", "up": "->../../../srv", "a": "->/srv/own", "trick": "->a/../seen", "file": "text",
			"circle": "->circle", "gone/inner": "text", "seen": "text", "chain": "->up/own",
		}),
		makeLayer(t, map[string]string{"gone": "whiteout", "srv/new": "text"}),
	}
	image, err := openLayers(directories)
	if err != nil {
		t.Fatal(err)
	}
	defer image.close()
	for name, test := range map[string]struct {
		path               string
		links              []string
		directory, missing bool
		err                error
	}{
		"/":                                    {"/", nil, true, false, nil},
		"/srv/own":                             {"/srv/own", nil, true, false, nil},
		"/srv/own/x":                           {"/srv/own/x", nil, false, false, nil},
		"srv/./own/../new":                     {"/srv/new", nil, false, false, nil},
		"/../srv":                              {"/srv", nil, true, false, nil},
		"/opt/sandbox":                         {"/var/opt/sandbox", []string{"/opt"}, false, true, nil},
		"/up/own":                              {"/srv/own", []string{"/up"}, true, false, nil},
		"/chain/x":                             {"/srv/own/x", []string{"/chain", "/up"}, false, false, nil},
		"/trick":                               {"/srv/seen", []string{"/trick", "/a"}, false, true, nil}, // not /seen
		"/gone/inner":                          {"/gone/inner", nil, false, true, nil},
		"/none/../srv":                         {"/srv", nil, true, false, nil},
		"/file/x":                              {"", nil, false, false, unix.ENOTDIR},
		"/circle":                              {"", nil, false, false, unix.ELOOP},
		strings.Repeat("/srv/own/../..", 1000): {"", nil, false, false, unix.ENAMETOOLONG},
	} {
		got, err := image.resolve(name)
		if !errors.Is(err, test.err) {
			t.Errorf("%.40s: %v, want %v", name, err, test.err)
		}
		if test.err == nil && (got.path != test.path || !slices.Equal(got.links, test.links) || got.directory != test.directory || got.missing != test.missing) {
			t.Errorf("%s: %+v, want %+v", name, got, test)
		}
	}
}

// TestTargets: a mount goes where its path says, or nowhere; only the service's directory may be
// where links lead, and nothing may lie there or over the links.
func TestTargets(t *testing.T) {
	daemon := Mount{Source: "/d", Target: "/opt/sandbox", FollowLinks: true}
	at := func(target string) Mount { return Mount{Source: "/v", Target: target} }
	for name, test := range map[string]struct {
		image  map[string]string
		mounts []Mount
		target string // of the error; empty: want are the targets
		says   string
		want   []string
	}{
		"directories":              {map[string]string{"x/y/z/file": "text"}, []Mount{daemon, at("/x/y/z")}, "", "", []string{"/opt/sandbox", "/x/y/z"}},
		"nothing":                  {map[string]string{"a": "text"}, []Mount{daemon, at("/x/y/z/")}, "", "", []string{"/opt/sandbox", "/x/y/z"}},
		"a file":                   {map[string]string{"x": "text"}, []Mount{at("/x")}, "", "", []string{"/x"}},
		"link to the daemon":       {map[string]string{"x/y/z": "->/opt/sandbox"}, []Mount{daemon, at("/x/y/z")}, "/x/y/z", `"/x/y/z" of the image to "/opt/sandbox"`, nil},
		"link to the kernel":       {map[string]string{"x": "->sys"}, []Mount{at("/x/fs")}, "/x/fs", `to "/sys/fs"`, nil},
		"harmless link":            {map[string]string{"var/run": "->/run"}, []Mount{at("/var/run/x")}, "/var/run/x", `to "/run/x"; symbolic links are not followed`, nil},
		"below a file":             {map[string]string{"x": "text"}, []Mount{at("/x/y")}, "/x/y", "not a directory", nil},
		"circle":                   {map[string]string{"x": "->x"}, []Mount{at("/x/y")}, "/x/y", "cannot be found", nil},
		"the root":                 {map[string]string{"x": "text"}, []Mount{at("/")}, "/", "root", nil},
		"opt is a link":            {map[string]string{"opt": "->/var/opt"}, []Mount{daemon, at("/data")}, "", "", []string{"/var/opt/sandbox", "/data"}},
		"opt leads to the kernel":  {map[string]string{"opt": "->/proc/self/root"}, []Mount{daemon}, "/opt/sandbox", "nothing else can be mounted", nil},
		"opt is a file":            {map[string]string{"opt": "text"}, []Mount{daemon}, "/opt/sandbox", "not a directory", nil},
		"the daemon's is a file":   {map[string]string{"opt/sandbox": "text"}, []Mount{daemon}, "/opt/sandbox", "is not a directory in the image", nil},
		"over where opt leads":     {map[string]string{"opt": "->/var/opt"}, []Mount{daemon, at("/var")}, "/var", "overlaps", nil},
		"below where opt leads":    {map[string]string{"opt": "->/var/opt"}, []Mount{daemon, at("/var/opt/sandbox/x")}, "/var/opt/sandbox/x", "overlaps", nil},
		"over a link of opt's way": {map[string]string{"opt": "->/w/o", "w/o": "->/srv"}, []Mount{daemon, at("/w")}, "/w", "overlaps", nil},
	} {
		t.Run(name, func(t *testing.T) {
			image, err := openLayers([]string{makeLayer(t, test.image)})
			if err != nil {
				t.Fatal(err)
			}
			defer image.close()
			got, err := targets(image, test.mounts)
			if test.target != "" {
				var target *engine.TargetError
				if !errors.As(err, &target) || target.Target != test.target || !strings.Contains(target.Rule, test.says) || !errors.Is(err, engine.ErrInvalid) {
					t.Errorf("%v, want one about %s that says %q", err, test.target, test.says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var found []string
			for _, m := range got {
				found = append(found, m.Target)
			}
			if !slices.Equal(found, test.want) {
				t.Errorf("targets %q, want %q", found, test.want)
			}
		})
	}
}

// TestEtcTargets: the files of /etc are mounted where the image's links lead, and nowhere else than
// in the image.
func TestEtcTargets(t *testing.T) {
	etc := t.TempDir()
	if err := os.WriteFile(filepath.Join(etc, "hosts"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		image  map[string]string
		mounts []Mount
		want   string // empty: it is not mounted
	}{
		"a file":             {map[string]string{"etc/hosts": "text"}, nil, "/etc/hosts"},
		"nothing":            {map[string]string{"x": "text"}, nil, "/etc/hosts"},
		"a link":             {map[string]string{"etc/hosts": "->../run/hosts"}, nil, "/run/hosts"},
		"etc is a link":      {map[string]string{"etc": "->config", "config/x": "text"}, nil, "/config/hosts"},
		"link to the kernel": {map[string]string{"etc/hosts": "->/proc/sysrq-trigger"}, nil, ""},
		"etc leads to it":    {map[string]string{"etc": "->/proc/self"}, nil, ""},
		"a directory":        {map[string]string{"etc/hosts/x": "text"}, nil, ""},
		"circle":             {map[string]string{"etc/hosts": "->hosts"}, nil, ""},
		"link to the daemon": {map[string]string{"etc/hosts": "->/opt/sandbox/execd"}, []Mount{{Target: "/opt/sandbox"}}, ""},
		"in a volume":        {map[string]string{"etc/x": "text"}, []Mount{{Target: "/etc"}}, ""},
	} {
		image, err := openLayers([]string{makeLayer(t, test.image)})
		if err != nil {
			t.Fatal(err)
		}
		got, err := etcMounts(Input{EtcDirectory: etc}, image, test.mounts)
		image.close()
		if err != nil || len(got) > 1 || (len(got) == 1) != (test.want != "") || len(got) == 1 && got[0].Destination != test.want {
			t.Errorf("%s: %v, %v, want %q", name, got, err, test.want)
		}
	}
}

// TestKernelDirectories: an image that has something else in their place is refused.
func TestKernelDirectories(t *testing.T) {
	for content, says := range map[string]string{"->/tmp": "/dev is a symbolic link", "text": "/dev is not a directory", "whiteout": ""} {
		image, err := openLayers([]string{makeLayer(t, map[string]string{"dev": content})})
		if err != nil {
			t.Fatal(err)
		}
		err = checkOwnTargets(image)
		image.close()
		if (err == nil) != (says == "") || err != nil && (!errors.Is(err, engine.ErrInvalid) || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: %v, want %q", content, err, says)
		}
	}
	if err := checkWorkingDirectory([]string{makeLayer(t, map[string]string{"w": "->/proc/self/fd/7"})}, "w"); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("a working directory of /proc: %v", err)
	}
}

// TestClosedWays: the directories that the image's user cannot pass are opened, and no others.
func TestClosedWays(t *testing.T) {
	directory := makeLayer(t, map[string]string{"etc/passwd": "app:x:1000:1000::/:\n", "opt/x": "text", "var/opt/x": "text", "link": "->/var/opt"})
	for name, mode := range map[string]os.FileMode{"opt": 0o700, "var": 0o750, "var/opt": 0o755} {
		if err := os.Chmod(filepath.Join(directory, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		user, target string
		want         map[string]uint32
	}{
		{"app", "/opt/sandbox", map[string]uint32{"opt": 0o711}},
		{"app", "/link/sandbox", map[string]uint32{"var": 0o751}},
		{"app", "/opt", nil},
		{"app", "/etc/sandbox", nil},
		{"1000:0", "/var/sandbox", map[string]uint32{"var": 0o751}}, // the bit of the group is for reading alone
		{"", "/opt/sandbox", nil},
	} {
		if test.user == "1000:0" {
			if err := os.Chmod(filepath.Join(directory, "var"), 0o740); err != nil {
				t.Fatal(err)
			}
		}
		ways, err := ClosedWays([]string{directory}, nil, test.user, []string{test.target})
		if err != nil || len(ways) != len(test.want) {
			t.Errorf("%q, %s: %+v, %v", test.user, test.target, ways, err)
		}
		for _, way := range ways {
			if way.Mode != test.want[way.Path] {
				t.Errorf("%q, %s: %+v, want %o", test.user, test.target, way, test.want[way.Path])
			}
		}
	}
}

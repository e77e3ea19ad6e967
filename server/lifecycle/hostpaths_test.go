package lifecycle_test

import (
	"errors"
	"strings"
	"testing"

	"sandbox.internal/server/lifecycle"
)

func TestHostPaths(t *testing.T) {
	never := []string{"/run/docker.sock", "/var/run/docker.sock", "/var/lib/sandbox-server"}
	for name, test := range map[string]struct {
		path    string
		allowed []string
		rule    string
	}{
		"no list":                  {"/srv", nil, ""},
		"no list, /etc":            {"/etc", nil, lifecycle.RuleSystem},
		"no list, below /etc":      {"/etc/ssh", nil, lifecycle.RuleSystem},
		"no list, /root":           {"/root/.ssh", nil, lifecycle.RuleSystem},
		"no list, /boot":           {"/boot", nil, lifecycle.RuleSystem},
		"no list, /usr":            {"/usr/local/bin", nil, lifecycle.RuleSystem},
		"no list, /var/spool":      {"/var/spool/cron", nil, lifecycle.RuleSystem},
		"no list, a longer name":   {"/etcetera", nil, ""},
		"no list, /var/tmp":        {"/var/tmp/x", nil, ""},
		"system, listed":           {"/etc/ssl/certs", []string{"/etc/ssl"}, ""},
		"the prefix itself":        {"/srv", []string{"/srv"}, ""},
		"below":                    {"/srv/a/b", []string{"/srv"}, ""},
		"second prefix":            {"/data/a", []string{"/srv", "/data"}, ""},
		"slash at its end":         {"/srv/a", []string{"/srv/"}, ""},
		"root prefix":              {"/etc", []string{"/"}, ""},
		"a longer name":            {"/srv2", []string{"/srv"}, lifecycle.RuleAllowed},
		"above":                    {"/", []string{"/srv"}, lifecycle.RuleAllowed},
		"elsewhere":                {"/etc", []string{"/srv", "/data"}, lifecycle.RuleAllowed},
		"empty prefix":             {"/etc", []string{""}, lifecycle.RuleAllowed},
		"the root":                 {"/", []string{"/"}, lifecycle.RuleNever},
		"the root, no list":        {"/", nil, lifecycle.RuleNever},
		"/proc":                    {"/proc", nil, lifecycle.RuleNever},
		"below /proc, listed":      {"/proc/sys", []string{"/proc/sys"}, lifecycle.RuleNever},
		"/sys":                     {"/sys/fs/cgroup", nil, lifecycle.RuleNever},
		"/dev":                     {"/dev/shm", nil, lifecycle.RuleNever},
		"a socket":                 {"/run/docker.sock", []string{"/run"}, lifecycle.RuleNever},
		"its directory":            {"/run", []string{"/run"}, lifecycle.RuleNever},
		"beside it":                {"/run/user", []string{"/run"}, ""},
		"a socket by another name": {"/var/run/docker.sock", nil, lifecycle.RuleNever},
		"two above":                {"/var", nil, lifecycle.RuleNever},
		"below own data":           {"/var/lib/sandbox-server/signing.key", []string{"/var/lib"}, lifecycle.RuleNever},
		"a longer name of data":    {"/var/lib/sandbox-server-2", []string{"/var/lib"}, ""},
		"not listed goes first":    {"/proc", []string{"/srv"}, lifecycle.RuleAllowed},
	} {
		t.Run(name, func(t *testing.T) {
			rules := lifecycle.HostPaths{Allowed: test.allowed, Never: never}
			if got := rules.Broken(test.path); got != test.rule {
				t.Errorf("%q breaks %q, want %q", test.path, got, test.rule)
			}
		})
	}
}

func TestHostPathsOnTheWay(t *testing.T) {
	rules := lifecycle.HostPaths{Allowed: []string{"/srv/a"}, Never: []string{"/srv/a/own"}}
	for path, want := range map[string]string{
		"/": "", "/srv": "", "/srv/a": "", "/srv/a/x": "",
		"/etc": lifecycle.RuleAllowed, "/srv/b": lifecycle.RuleAllowed,
		"/proc": lifecycle.RuleNever, "/proc/1": lifecycle.RuleNever, "/srv/a/own": lifecycle.RuleNever, "/srv/a/own/x": lifecycle.RuleNever,
	} {
		if got := rules.BrokenOnTheWay(path); got != want {
			t.Errorf("%q breaks %q, want %q", path, got, want)
		}
	}
}

// TestAnchors: the directory above an anchor can never be mounted, so no sandbox can put a link in
// the anchor's place.
func TestAnchors(t *testing.T) {
	never := []string{"/var/run/docker.sock", "/data/own"}
	for name, test := range map[string]struct {
		allowed            []string
		path, anchor, rest string
	}{
		"no list":                {nil, "/srv/a/b", "/srv", "a/b"},
		"the anchor itself":      {nil, "/srv", "/srv", ""},
		"beside a socket":        {nil, "/var/tmp/x/y", "/var/tmp", "x/y"},
		"beside own data":        {nil, "/data/x", "/data/x", ""},
		"listed":                 {[]string{"/srv/a"}, "/srv/a/b", "/srv/a", "b"},
		"the shorter prefix":     {[]string{"/srv/a/b", "/srv/a"}, "/srv/a/b/c", "/srv/a", "b/c"},
		"listed above own data":  {[]string{"/data"}, "/data/x/y", "/data/x", "y"},
		"listed, a longer name":  {[]string{"/srv/a", "/srv/ab"}, "/srv/ab/c", "/srv/ab", "c"},
		"a name of the same way": {nil, "/var/running/x", "/var/running", "x"},
	} {
		t.Run(name, func(t *testing.T) {
			rules := lifecycle.HostPaths{Allowed: test.allowed, Never: never}
			if anchor, rest := rules.Anchor(test.path); anchor != test.anchor || rest != test.rest {
				t.Errorf("%q and %q, want %q and %q", anchor, rest, test.anchor, test.rest)
			}
		})
	}
}

// TestHostVolumesOfRoles: without a list host paths are for administrators; with one for every key
// that may create.
func TestHostVolumesOfRoles(t *testing.T) {
	volumes := []lifecycle.Volume{{Name: "named", ClaimName: "work"}, {Name: "data", HostPath: "/srv/a"}}
	for name, test := range map[string]struct {
		allowed []string
		role    lifecycle.Role
		kind    lifecycle.Kind // empty when it is allowed
	}{
		"administrator, no list": {nil, lifecycle.RoleAdmin, ""},
		"user, no list":          {nil, lifecycle.RoleUser, lifecycle.KindForbidden},
		"unknown, no list":       {nil, "", lifecycle.KindForbidden},
		"user, listed":           {[]string{"/srv"}, lifecycle.RoleUser, ""},
		"user, not listed":       {[]string{"/data"}, lifecycle.RoleUser, lifecycle.KindInvalid},
		"administrator, not":     {[]string{"/data"}, lifecycle.RoleAdmin, lifecycle.KindInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			err := lifecycle.HostPaths{Allowed: test.allowed}.CheckVolumes(volumes, test.role)
			var known *lifecycle.Error
			switch {
			case test.kind == "" && err != nil:
				t.Error(err)
			case test.kind != "" && (!errors.As(err, &known) || known.Kind != test.kind || !strings.HasPrefix(known.Message, "volumes[1].host")):
				t.Errorf("got %v, want an error of kind %s that names volumes[1].host", err, test.kind)
			}
		})
	}
	for _, role := range []lifecycle.Role{lifecycle.RoleAdmin, lifecycle.RoleUser} {
		err := lifecycle.HostPaths{None: true, Allowed: []string{"/srv"}}.CheckVolumes(volumes, role)
		if err == nil || !strings.Contains(err.Error(), lifecycle.RuleNone) {
			t.Errorf("%s, no host volumes: %v", role, err)
		}
	}
	below := []lifecycle.Volume{{Name: "data", HostPath: "/var", SubPath: "tmp"}}
	if err := (lifecycle.HostPaths{Never: []string{"/var/run"}}).CheckVolumes(below, lifecycle.RoleAdmin); err != nil {
		t.Errorf("a sub path outside the forbidden directories is refused: %v", err)
	}
}

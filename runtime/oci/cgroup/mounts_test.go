package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Lines of mountinfo: pure version 2, version 1 as systemd mounts it, and both.
const (
	pure    = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"
	legacy  = "31 23 0:28 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n34 31 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n35 31 0:32 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n36 31 0:33 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n37 31 0:34 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices\n38 31 0:35 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,release_agent=/lib/systemd/agent,name=systemd\n"
	unified = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)

func TestFindMounts(t *testing.T) {
	for name, test := range map[string]struct {
		mountinfo string
		own       string
		want      string // version, then each hierarchy as point:controllers:own
	}{
		"pure":          {pure, "0::/system.slice/sandbox.service\n", "2 /sys/fs/cgroup::/system.slice/sandbox.service"},
		"root of own":   {strings.Replace(pure, " / ", " /docker/1 ", 1), "0::/docker/1/init\n", "2 /sys/fs/cgroup::/init"},
		"mounted again": {pure + strings.Replace(pure, "/sys/fs/cgroup", "/mnt", 1), "0::/\n", "2 /sys/fs/cgroup::/"},
		"version 1": {legacy, "5:cpuacct,cpu:/a\n4:memory:/b\n3:pids:/\n2:freezer:/\n1:name=systemd:/s\n",
			"1 /sys/fs/cgroup/cpu,cpuacct:cpu,cpuacct:/a /sys/fs/cgroup/memory:memory:/b /sys/fs/cgroup/pids:pids:/ /sys/fs/cgroup/freezer:freezer:/ /sys/fs/cgroup/devices:devices:/ /sys/fs/cgroup/systemd:name=systemd:/s"},
		"none":              {"", "", "neither version 1 nor version 2 is mounted"},
		"without a freezer": {strings.ReplaceAll(legacy, "rw,freezer", "rw,blkio"), "", "version 1 is mounted without the controller freezer"},
	} {
		t.Run(name, func(t *testing.T) {
			own := filepath.Join(t.TempDir(), "cgroup")
			if err := os.WriteFile(own, []byte(test.own), 0o600); err != nil {
				t.Fatal(err)
			}
			groups, err := ownGroups(own)
			if err != nil {
				t.Fatal(err)
			}
			found, err := findMounts(strings.NewReader(test.mountinfo), groups)
			got := found.version
			if err != nil {
				got = err.Error()
			}
			for _, m := range found.mounts {
				got += fmt.Sprintf(" %s:%s:%s", m.point, strings.Join(m.controllers, ","), m.own)
			}
			if got != test.want {
				t.Errorf("found %s\nwant  %s", got, test.want)
			}
		})
	}
	// The tree of version 2 beside version 1 changes nothing.
	both, err := findMounts(strings.NewReader(unified+legacy), nil)
	alone, err2 := findMounts(strings.NewReader(legacy), nil)
	if err != nil || err2 != nil || fmt.Sprint(both) != fmt.Sprint(alone) {
		t.Errorf("both versions: %v, %v; version 1: %v, %v", both, err, alone, err2)
	}
}

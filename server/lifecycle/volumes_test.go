package lifecycle_test

import (
	"strings"
	"testing"

	"sandbox.internal/server/lifecycle"
)

func TestVolumeRules(t *testing.T) {
	for name, test := range map[string]struct {
		change      func(*lifecycle.Volume)
		field, rule string // empty when the volume is fine
	}{
		"fine":               {func(*lifecycle.Volume) {}, "", ""},
		"claim":              {func(v *lifecycle.Volume) { v.HostPath, v.ClaimName = "", "cl" }, "", ""},
		"long claim":         {func(v *lifecycle.Volume) { v.HostPath, v.ClaimName = "", strings.Repeat("c", 253) }, "", ""},
		"sub path":           {func(v *lifecycle.Volume) { v.SubPath = "a/b" }, "", ""},
		"no name":            {func(v *lifecycle.Volume) { v.Name = "" }, ".name: ", "1 to 63"},
		"capital name":       {func(v *lifecycle.Volume) { v.Name = "V" }, ".name: ", "lower-case"},
		"dash first":         {func(v *lifecycle.Volume) { v.Name = "-v" }, ".name: ", "dashes"},
		"dash last":          {func(v *lifecycle.Volume) { v.Name = "v-" }, ".name: ", "dashes"},
		"long name":          {func(v *lifecycle.Volume) { v.Name = strings.Repeat("v", 64) }, ".name: ", "1 to 63"},
		"no source":          {func(v *lifecycle.Volume) { v.HostPath = "" }, ": ", "exactly one of host and pvc"},
		"two sources":        {func(v *lifecycle.Volume) { v.ClaimName = "cl" }, ": ", "exactly one of host and pvc"},
		"relative source":    {func(v *lifecycle.Volume) { v.HostPath = "srv" }, ".host.path: ", "absolute"},
		"dots in source":     {func(v *lifecycle.Volume) { v.HostPath = "/srv/../etc" }, ".host.path: ", ".. parts"},
		"slash after source": {func(v *lifecycle.Volume) { v.HostPath = "/srv/" }, ".host.path: ", "needless slashes"},
		"NUL in source":      {func(v *lifecycle.Volume) { v.HostPath = "/srv\x00" }, ".host.path: ", "absolute"},
		"short claim":        {func(v *lifecycle.Volume) { v.HostPath, v.ClaimName = "", "c" }, ".pvc.claimName: ", "2 to 253"},
		"long claim name":    {func(v *lifecycle.Volume) { v.HostPath, v.ClaimName = "", strings.Repeat("c", 254) }, ".pvc.claimName: ", "2 to 253"},
		"path as claim":      {func(v *lifecycle.Volume) { v.HostPath, v.ClaimName = "", "a/b" }, ".pvc.claimName: ", "letters"},
		"no mount path":      {func(v *lifecycle.Volume) { v.MountPath = "" }, ".mountPath: ", "absolute"},
		"relative mount":     {func(v *lifecycle.Volume) { v.MountPath = "data" }, ".mountPath: ", "absolute"},
		"root":               {func(v *lifecycle.Volume) { v.MountPath = "/" }, ".mountPath: ", "not /"},
		"dots in mount":      {func(v *lifecycle.Volume) { v.MountPath = "/a/./b" }, ".mountPath: ", ". or .."},
		"double slash":       {func(v *lifecycle.Volume) { v.MountPath = "/a//b" }, ".mountPath: ", "needless slashes"},
		"NUL in mount":       {func(v *lifecycle.Volume) { v.MountPath = "/a\x00" }, ".mountPath: ", "absolute"},
		"the daemon's":       {func(v *lifecycle.Volume) { v.MountPath = "/opt/sandbox" }, ".mountPath: ", "daemon"},
		"in the daemon's":    {func(v *lifecycle.Volume) { v.MountPath = "/opt/sandbox/x" }, ".mountPath: ", "daemon"},
		"over the daemon's":  {func(v *lifecycle.Volume) { v.MountPath = "/opt" }, ".mountPath: ", "daemon"},
		"proc":               {func(v *lifecycle.Volume) { v.MountPath = "/proc" }, ".mountPath: ", "overlaps /proc"},
		"in sys":             {func(v *lifecycle.Volume) { v.MountPath = "/sys/fs/cgroup" }, ".mountPath: ", "overlaps /sys"},
		"shared memory":      {func(v *lifecycle.Volume) { v.MountPath = "/dev/shm" }, ".mountPath: ", "overlaps /dev"},
		"a longer name":      {func(v *lifecycle.Volume) { v.MountPath = "/develop" }, "", ""},
		"the host's root":    {func(v *lifecycle.Volume) { v.HostPath = "/" }, ".host.path: ", "not /"},
		"the daemon's claim": {func(v *lifecycle.Volume) { v.HostPath, v.ClaimName = "", "sandbox-execd-0123" }, ".pvc.claimName: ", "reserved"},
		"absolute sub path":  {func(v *lifecycle.Volume) { v.SubPath = "/a" }, ".subPath: ", "relative"},
		"sub path outside":   {func(v *lifecycle.Volume) { v.SubPath = "../a" }, ".subPath: ", ".. parts"},
		"sub path above":     {func(v *lifecycle.Volume) { v.SubPath = ".." }, ".subPath: ", ".. parts"},
		"sub path hidden":    {func(v *lifecycle.Volume) { v.SubPath = "a/../../b" }, ".subPath: ", ".. parts"},
		"sub path dot":       {func(v *lifecycle.Volume) { v.SubPath = "." }, ".subPath: ", ". or .."},
		"sub path slash":     {func(v *lifecycle.Volume) { v.SubPath = "a/" }, ".subPath: ", "needless slashes"},
		"NUL in sub path":    {func(v *lifecycle.Volume) { v.SubPath = "a\x00" }, ".subPath: ", "relative"},
	} {
		t.Run(name, func(t *testing.T) {
			volume := lifecycle.Volume{Name: "data", MountPath: "/data", HostPath: "/srv/data"}
			test.change(&volume)
			spec := validSpec()
			spec.Volumes = []lifecycle.Volume{{Name: "first", MountPath: "/first", ClaimName: "first"}, volume}
			if err := spec.Validate(); test.field != "" {
				expectInvalid(t, err, "volumes[1]"+test.field, test.rule)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

func TestVolumesTogether(t *testing.T) {
	for name, test := range map[string]struct {
		secondName, secondPath string
		field, rule            string
	}{
		"apart":          {"b", "/other", "", ""},
		"a longer name":  {"b", "/data2", "", ""},
		"the same name":  {"a", "/other", "volumes[1].name: ", "used twice"},
		"the same path":  {"b", "/data/x", "volumes[1].mountPath: ", `overlaps volumes[0].mountPath "/data/x"`},
		"below a volume": {"b", "/data/x/y", "volumes[1].mountPath: ", "overlaps"},
		"above a volume": {"b", "/data", "volumes[1].mountPath: ", "overlaps"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := validSpec()
			spec.Volumes = []lifecycle.Volume{
				{Name: "a", MountPath: "/data/x", HostPath: "/srv"},
				{Name: test.secondName, MountPath: test.secondPath, HostPath: "/srv"},
			}
			if err := spec.Validate(); test.field != "" {
				expectInvalid(t, err, test.field, test.rule)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

package lifecycle_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sandbox.internal/server/lifecycle"
)

func validSpec() lifecycle.Spec {
	return lifecycle.Spec{
		Image:      "registry.example/python:3",
		Timeout:    time.Hour,
		Resources:  lifecycle.ResourceLimits{"cpu": "500m", "memory": "512Mi"},
		Entrypoint: []string{"sleep", "60"},
	}
}

// pairs returns that much valid metadata.
func pairs(count int) map[string]string {
	made := make(map[string]string, count)
	for i := range count {
		made[fmt.Sprint(i)] = ""
	}
	return made
}

// volumes returns that many valid ones.
func volumes(count int) []lifecycle.Volume {
	var made []lifecycle.Volume
	for i := range count {
		made = append(made, lifecycle.Volume{Name: fmt.Sprint(i), MountPath: fmt.Sprintf("/%d", i), ClaimName: "claim"})
	}
	return made
}

func TestSpecValid(t *testing.T) {
	for name, change := range map[string]func(*lifecycle.Spec){
		"least":            func(*lifecycle.Spec) {},
		"no limits":        func(s *lifecycle.Spec) { s.Resources = nil },
		"shortest timeout": func(s *lifecycle.Spec) { s.Timeout = 60 * time.Second },
		"longest timeout":  func(s *lifecycle.Spec) { s.Timeout = 86400 * time.Second },
		"credentials":      func(s *lifecycle.Spec) { s.Auth = &lifecycle.ImageAuth{Username: "u", Password: "p"} },
		"empty argument":   func(s *lifecycle.Spec) { s.Entrypoint = []string{"echo", ""} },
		"env":              func(s *lifecycle.Spec) { s.Env = map[string]string{"PATH": "/bin", "a.b": "", "execd_x": "=\n"} },
		"metadata": func(s *lifecycle.Spec) {
			s.Metadata = map[string]string{"name": "", strings.Repeat("k", 256): strings.Repeat("v", 4096), "ключ": "значение", "sandbox.internal": "x"}
		},
		"most metadata": func(s *lifecycle.Spec) { s.Metadata = pairs(lifecycle.MaxMetadataPairs) },
		"volumes": func(s *lifecycle.Spec) {
			s.Volumes = []lifecycle.Volume{
				{Name: "a", MountPath: "/data", HostPath: "/srv/data", SubPath: "..x/y"},
				{Name: strings.Repeat("b", 63), MountPath: "/data2", ClaimName: "claim_1.x"},
				{Name: "0", MountPath: "/opt/sandbox2", HostPath: "/srv"},
			}
		},
		"most volumes": func(s *lifecycle.Spec) { s.Volumes = volumes(lifecycle.MaxVolumes) },
	} {
		t.Run(name, func(t *testing.T) {
			spec := validSpec()
			change(&spec)
			if err := spec.Validate(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestSpecInvalid(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*lifecycle.Spec)
		field  string
		rule   string
	}{
		"no image":        {func(s *lifecycle.Spec) { s.Image = "" }, "image.uri: ", "must name an image"},
		"blank image":     {func(s *lifecycle.Spec) { s.Image = " \t" }, "image.uri: ", "must name an image"},
		"long image":      {func(s *lifecycle.Spec) { s.Image = strings.Repeat("x", 1025) }, "image.uri: ", "1024 bytes"},
		"no user name":    {func(s *lifecycle.Spec) { s.Auth = &lifecycle.ImageAuth{Password: "p"} }, "image.auth: ", "both"},
		"no password":     {func(s *lifecycle.Spec) { s.Auth = &lifecycle.ImageAuth{Username: "u"} }, "image.auth: ", "both"},
		"no timeout":      {func(s *lifecycle.Spec) { s.Timeout = 0 }, "timeout: ", "got 0"},
		"short timeout":   {func(s *lifecycle.Spec) { s.Timeout = 59 * time.Second }, "timeout: ", "within 60 and 86400 seconds, got 59"},
		"long timeout":    {func(s *lifecycle.Spec) { s.Timeout = 86401 * time.Second }, "timeout: ", "within 60 and 86400 seconds, got 86401"},
		"no entrypoint":   {func(s *lifecycle.Spec) { s.Entrypoint = nil }, "entrypoint: ", "is required, unless imageEntrypoint is true"},
		"two entrypoints": {func(s *lifecycle.Spec) { s.ImageEntrypoint = true }, "entrypoint: ", "left out"},
		"empty array":     {func(s *lifecycle.Spec) { s.Entrypoint = []string{} }, "entrypoint: ", "non-empty array"},
		"no executable":   {func(s *lifecycle.Spec) { s.Entrypoint = []string{"", "x"} }, "entrypoint: ", "executable"},
		"NUL in argument": {func(s *lifecycle.Spec) { s.Entrypoint = []string{"x", "a\x00b"} }, "entrypoint[1]: ", "NUL"},
		"cpu":             {func(s *lifecycle.Spec) { s.Resources["cpu"] = "500" }, "resourceLimits.cpu: ", "500m"},
		"memory":          {func(s *lifecycle.Spec) { s.Resources["memory"] = "512" }, "resourceLimits.memory: ", "512Mi"},
		"requests":        {func(s *lifecycle.Spec) { s.Requests = lifecycle.ResourceLimits{"cpu": "1"} }, "resourceRequests.cpu: ", "at most resourceLimits.cpu, 500m"},
		"memory to spare": {func(s *lifecycle.Spec) { s.Requests = lifecycle.ResourceLimits{"memory": "1Gi"} }, "resourceRequests.memory: ", "at most resourceLimits.memory, 512Mi"},
		"gpu requests":    {func(s *lifecycle.Spec) { s.Requests = lifecycle.ResourceLimits{"gpu": "1"} }, "resourceRequests.gpu: ", "leave the key out"},
		"no quantity":     {func(s *lifecycle.Spec) { s.Requests = lifecycle.ResourceLimits{"cpu": "x"} }, "resourceRequests.cpu: ", "500m"},
		"unnamed env":     {func(s *lifecycle.Spec) { s.Env = map[string]string{"": "x"} }, "env: ", "non-empty"},
		"env with =":      {func(s *lifecycle.Spec) { s.Env = map[string]string{"A=B": "x"} }, "env: ", `"A=B"`},
		"NUL in env name": {func(s *lifecycle.Spec) { s.Env = map[string]string{"A\x00": "x"} }, "env: ", "NUL"},
		"NUL in env":      {func(s *lifecycle.Spec) { s.Env = map[string]string{"A": "\x00"} }, "env.A: ", "NUL"},
		"reserved env":    {func(s *lifecycle.Spec) { s.Env = map[string]string{"EXECD_TOKEN": "x"} }, "env.EXECD_TOKEN: ", "reserved"},
		"token":           {func(s *lifecycle.Spec) { s.Env = map[string]string{"EXECD_ACCESS_TOKEN": "x"} }, "env.EXECD_ACCESS_TOKEN: ", "reserved"},
		"grace":           {func(s *lifecycle.Spec) { s.Env = map[string]string{"EXECD_API_GRACE_SHUTDOWN": "3"} }, "env.EXECD_API_GRACE_SHUTDOWN: ", "duration"},
		"negative grace":  {func(s *lifecycle.Spec) { s.Env = map[string]string{"EXECD_API_GRACE_SHUTDOWN": "-1s"} }, "env.EXECD_API_GRACE_SHUTDOWN: ", "duration"},
		"no metadata key": {func(s *lifecycle.Spec) { s.Metadata = map[string]string{"": "x"} }, "metadata: ", "1 to 256 bytes"},
		"long key":        {func(s *lifecycle.Spec) { s.Metadata = map[string]string{strings.Repeat("é", 129): "x"} }, "metadata: ", "1 to 256 bytes"},
		"key not UTF-8":   {func(s *lifecycle.Spec) { s.Metadata = map[string]string{"\xff": "x"} }, "metadata: ", "UTF-8"},
		"reserved key":    {func(s *lifecycle.Spec) { s.Metadata = map[string]string{"sandbox.internal/id": "x"} }, "metadata: ", "reserved"},
		"long value":      {func(s *lifecycle.Spec) { s.Metadata = map[string]string{"k": strings.Repeat("x", 4097)} }, "metadata.k: ", "4096 bytes"},
		"value not UTF-8": {func(s *lifecycle.Spec) { s.Metadata = map[string]string{"k": "\xff"} }, "metadata.k: ", "UTF-8"},
		"many pairs":      {func(s *lifecycle.Spec) { s.Metadata = pairs(257) }, "metadata: ", "at most 256 pairs, has 257"},
		"volume": {func(s *lifecycle.Spec) {
			s.Volumes = []lifecycle.Volume{{Name: "v", MountPath: "data", HostPath: "/h"}}
		}, "volumes[0].mountPath: ", "absolute"},
		"many volumes": {func(s *lifecycle.Spec) { s.Volumes = volumes(65) }, "volumes: ", "at most 64 items, has 65"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := validSpec()
			test.change(&spec)
			expectInvalid(t, spec.Validate(), test.field, test.rule)
		})
	}
}

// TestSettingsOfTheDaemon: the variables that the execd document lists are a client's to set, but
// for the token's.
func TestSettingsOfTheDaemon(t *testing.T) {
	spec := validSpec()
	spec.Env = map[string]string{
		"EXECD_API_GRACE_SHUTDOWN": "500ms", "EXECD_LOG_FILE": "/tmp/execd.log", "JUPYTER_HOST": "http://127.0.0.1:8888", "JUPYTER_TOKEN": "x",
	}
	if err := spec.Validate(); err != nil {
		t.Error(err)
	}
	spec.Env = map[string]string{"EXECD_API_GRACE_SHUTDOWN": ""} // counts as unset
	if err := spec.Validate(); err != nil {
		t.Error(err)
	}
}

func TestCheckRenewal(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		current, wanted time.Duration // from now
		rule            string        // empty when it is allowed
	}{
		"later":                {time.Hour, 2 * time.Hour, ""},
		"a little later":       {time.Hour, time.Hour + 1, ""},
		"as late as can be":    {time.Hour, 86400 * time.Second, ""},
		"past the due time":    {-time.Second, time.Second, ""},
		"in the past":          {-time.Hour, -time.Second, "in the future"},
		"now":                  {-time.Hour, 0, "in the future"},
		"earlier than current": {time.Hour, time.Minute, "later than the current expiry 2026-11-21T13:00:00Z"},
		"same as current":      {time.Hour, time.Hour, "later than the current expiry"},
		"too late":             {time.Hour, 86400*time.Second + 1, "at most 86400 seconds from now"},
	} {
		t.Run(name, func(t *testing.T) {
			zone := time.FixedZone("east", 3600) // a client's zone changes nothing
			err := lifecycle.CheckRenewal(now, now.Add(test.current), now.Add(test.wanted).In(zone))
			if test.rule != "" {
				expectInvalid(t, err, "expiresAt: ", test.rule)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPageValidate(t *testing.T) {
	for page, field := range map[lifecycle.Page]string{
		{Number: 1, Size: 1}: "", {Number: 1 << 40, Size: 1000}: "",
		{Number: 0, Size: 20}: "page: ", {Number: -1, Size: 20}: "page: ",
		{Number: 1, Size: 0}: "pageSize: ", {Number: 1, Size: 1001}: "pageSize: ",
	} {
		if err := page.Validate(); field != "" {
			expectInvalid(t, err, field)
		} else if err != nil {
			t.Errorf("%+v: %v", page, err)
		}
	}
}

func TestCheckPort(t *testing.T) {
	for port, valid := range map[int]bool{1: true, 44772: true, 65535: true, 0: false, -1: false, 65536: false} {
		if err := lifecycle.CheckPort(port); !valid {
			expectInvalid(t, err, "port: ")
		} else if err != nil {
			t.Errorf("%d: %v", port, err)
		}
	}
}

// TestMessagesAreShort: a message repeats the beginning of what a client sent, and not all of it.
func TestMessagesAreShort(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	volume := func(v lifecycle.Volume) func(*lifecycle.Spec) {
		return func(s *lifecycle.Spec) { s.Volumes = []lifecycle.Volume{v} }
	}
	for name, change := range map[string]func(*lifecycle.Spec){
		"metadata key":      func(s *lifecycle.Spec) { s.Metadata = map[string]string{long: ""} },
		"variable":          func(s *lifecycle.Spec) { s.Env = map[string]string{long + "=": ""} },
		"reserved variable": func(s *lifecycle.Spec) { s.Env = map[string]string{"EXECD_" + long: ""} },
		"variable's value":  func(s *lifecycle.Spec) { s.Env = map[string]string{long: "\x00"} },
		"limit":             func(s *lifecycle.Spec) { s.Resources = lifecycle.ResourceLimits{long: "1"} },
		"cpu":               func(s *lifecycle.Spec) { s.Resources = lifecycle.ResourceLimits{"cpu": long} },
		"memory":            func(s *lifecycle.Spec) { s.Resources = lifecycle.ResourceLimits{"memory": long} },
		"gpu":               func(s *lifecycle.Spec) { s.Resources = lifecycle.ResourceLimits{"gpu": long} },
		"default action":    func(s *lifecycle.Spec) { s.NetworkPolicy = &lifecycle.NetworkPolicy{DefaultAction: long} },
		"action": func(s *lifecycle.Spec) {
			s.NetworkPolicy = &lifecycle.NetworkPolicy{Egress: []lifecycle.EgressRule{{Action: long, Target: "x.com"}}}
		},
		"target": func(s *lifecycle.Spec) {
			s.NetworkPolicy = &lifecycle.NetworkPolicy{Egress: []lifecycle.EgressRule{{Action: "allow", Target: long}}}
		},
		"volume name":   volume(lifecycle.Volume{Name: long, MountPath: "/a", ClaimName: "claim"}),
		"host path":     volume(lifecycle.Volume{Name: "a", MountPath: "/a", HostPath: long}),
		"claim":         volume(lifecycle.Volume{Name: "a", MountPath: "/a", ClaimName: long}),
		"mount path":    volume(lifecycle.Volume{Name: "a", MountPath: long, ClaimName: "claim"}),
		"daemon's path": volume(lifecycle.Volume{Name: "a", MountPath: lifecycle.DaemonPath + "/" + long, ClaimName: "claim"}),
		"kernel's path": volume(lifecycle.Volume{Name: "a", MountPath: "/proc/" + long, ClaimName: "claim"}),
		"sub path":      volume(lifecycle.Volume{Name: "a", MountPath: "/a", ClaimName: "claim", SubPath: "/" + long}),
		"overlap": func(s *lifecycle.Spec) {
			s.Volumes = []lifecycle.Volume{
				{Name: "a", MountPath: "/" + long, ClaimName: "claim"}, {Name: "b", MountPath: "/" + long + "/b", ClaimName: "claim"},
			}
		},
	} {
		s := validSpec()
		change(&s)
		if err := s.Validate(); err == nil || len(err.Error()) > 512 {
			t.Errorf("%s: %.600v", name, err)
		}
	}
	_, noClass := lifecycle.RuntimeClasses{}.Find(long)
	_, noState := lifecycle.ParseState(long)
	_, noFilter := lifecycle.ParseMetadataFilter(long)
	forbidden := lifecycle.HostPaths{None: true}.CheckVolumes([]lifecycle.Volume{{HostPath: "/" + long}}, lifecycle.RoleAdmin)
	for _, err := range []error{noClass, noState, noFilter, forbidden} {
		if err == nil || len(err.Error()) > 512 {
			t.Errorf("%.600v", err)
		}
	}
}

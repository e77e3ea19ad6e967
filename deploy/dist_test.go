package deploy_test

import (
	"os/exec"
	"strings"
	"testing"
)

// TestPythonVersion: the package of the Python client has the version of the programs, in Python's
// spelling.
func TestPythonVersion(t *testing.T) {
	const script = "../scripts/pythonversion.sh"
	_ = read(t, script) // makes it an input of this test
	for version, want := range map[string]string{
		"v1.2.3":                               "1.2.3",
		"v10.0.20":                             "10.0.20",
		"v1.2.3-rc.1":                          "1.2.3rc1",
		"v1.2.3-alpha.0":                       "1.2.3a0",
		"v1.2.3-beta.12":                       "1.2.3b12",
		"v0.0.0-20260102150405-0123456789ab":   "0.0.0.dev20260102150405+0123456789ab",
		"v1.2.4-0.20260102150405-0123456789ab": "1.2.4.dev20260102150405+0123456789ab",
		"v1.2.3-rc.1.0.20260102150405-0123456789ab": "1.2.3rc1.post20260102150405+0123456789ab",
		"": "", "devel": "", "v1.2": "", "1.2.3": "", "v1.2.3-rc1": "", "v1.2.3+dirty": "", "v01.2.3": "",
	} {
		output, err := exec.CommandContext(t.Context(), script, version).Output()
		if got := strings.TrimSpace(string(output)); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v, want %q", version, got, err, want)
		}
	}
}

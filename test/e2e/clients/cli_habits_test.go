package clients_test

import (
	"strings"
	"testing"

	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// TestHabits types what people type who know docker, podman, kubectl or another sandbox service: it
// works, or the error names what to type here.
func TestHabits(t *testing.T) {
	t.Parallel()
	c := newCommandLine(t, start(t, conformance.Plan{}).URL)
	c.must(t, "create", baseImage, "--name", "box", "-q")
	for _, habit := range []struct {
		line   string // of words without spaces
		code   int
		stdout string // is in the standard output
		stderr string // is in the standard error, which is empty without it
	}{
		{"ps", 0, "box", ""},
		{"list", 0, "box", ""},
		{"images", 0, baseImage, ""},
		{"inspect box", 0, "box", ""},
		{"describe box", 0, "box", ""},
		{"run --rm " + baseImage + " echo hello", 0, "hello\n", ""},
		{"run -m 256m --cpus 0.5 --label team=a " + baseImage + " true", 0, "", ""},
		{"run --network none " + baseImage + " true", 125, "", "egress"},
		{"run --network host " + baseImage + " true", 125, "", "network: must be none"},
		{"run --privileged " + baseImage + " true", 125, "", "a sandbox never is"},
		{"run -d " + baseImage, 0, "-", ""}, // a shell that reads nothing and ends with exit code 0
		{"run " + baseImage, 0, "", ""},
		{"run -d -p 80 " + baseImage + " true", 125, "", "'sandbox port' forwards ports"},
		{"exec -u nobody box id -un", 0, "nobody\n", ""},
		{"exec -u nobody:daemon box id -gn", 0, "daemon\n", ""},
		{"exec -u root box id -g", 0, "0\n", ""},
		{"exec -u stranger box id", 125, "", `/etc/passwd in the sandbox has no user "stranger"`},
		{"exec -u nobody:strangers box id", 125, "", `/etc/group in the sandbox has no group "strangers"`},
		{"files mkdir -p box /srv/a/b --mode 750", 0, "", ""},
		{"exec box stat -c %a /srv/a/b", 0, "750\n", ""},
		{"files chmod box 4711 /srv/a/b", 0, "", ""},
		{"exec box stat -c %a /srv/a/b", 0, "4711\n", ""},
		{"files chmod box u+x /srv/a/b", 2, "", "mode: must be octal digits"},
		{"files get box /etc/passwd accounts", 0, "", ""},
		{"files rm -r box /srv/a", 0, "", ""},
		{"pause box", 0, "box", ""},
		{"unpause box", 0, "box", ""},
		{"logs -f box --timeout 1s", 2, "", "unknown flag: --timeout"},
		{"stop box", 2, "", "'sandbox pause' keeps processes and memory, 'sandbox rm' ends"},
		{"start box", 2, "", "'sandbox resume'"},
		{"kill box", 2, "", "'sandbox rm'"},
		{"restart box", 2, "", "'sandbox create'"},
		{"attach box", 2, "", "'sandbox logs -f'"},
		{"build .", 2, "", "'sandbox image load'"},
		{"volume ls", 2, "", "'sandbox create -v NAME:/PATH'"},
		{"pull no.invalid/image", 1, "", "no.invalid"},
		{"rmi no-such-image", 1, "", "no-such-image"},
		{"delete box", 0, "box", ""},
	} {
		got := c.run(t, "", strings.Fields(habit.line)...)
		if got.code != habit.code || !strings.Contains(got.stdout, habit.stdout) || !strings.Contains(got.stderr, habit.stderr) ||
			habit.stderr == "" && got.stderr != "" {
			t.Errorf("sandbox %s: code %d, want %d\nstdout %q\nstderr %q", habit.line, got.code, habit.code, got.stdout, got.stderr)
		}
	}
	id := strings.TrimSpace(c.must(t, "run", "-d", "--name", "web", baseImage, "--", "sh", "-c", "echo serves; exec sleep 600"))
	if got := c.must(t, "get", "web", "-q"); strings.TrimSpace(got) != id {
		t.Errorf("run -d printed %q, and the sandbox is %q", id, got)
	}
	wait.Until(t, "output of the main program", func() bool { return c.must(t, "logs", "web") == "serves\n" })
}

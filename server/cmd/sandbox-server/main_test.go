package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"sandbox.internal/server/commandline"
	"sandbox.internal/server/commandline/commandlinetest"
	"sandbox.internal/server/config"
)

// command runs the program with a home of its own and returns its exit code, output and errors.
func command(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = commandline.Run(newRoot(), args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestConfigInitIsValidAndNeverOverwrites(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("SANDBOX_CONFIG_PATH", "")
	file := filepath.Join(t.TempDir(), "new", "sandbox.toml") // its directory is made
	if code, _, stderr := command(t, "--config", file, "config", "init"); code != 0 {
		t.Fatalf("init: exit %d: %s", code, stderr)
	}
	if code, stdout, stderr := command(t, "--config", file, "config", "check"); code != 0 || !strings.Contains(stdout, file+": valid") {
		t.Errorf("check: exit %d: %s%s", code, stdout, stderr)
	}
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := command(t, "--config", file, "config", "init"); code != commandline.ExitFailure || !strings.Contains(stderr, file) {
		t.Errorf("a second init: exit %d: %s", code, stderr)
	}
	if after, err := os.ReadFile(file); err != nil || !bytes.Equal(before, after) {
		t.Error("a second init changed the file")
	}
	keyLine := regexp.MustCompile(`(?m)^api_key = "([0-9a-f]{64})"$`)
	_, printed, _ := command(t, "--config", "-", "config", "init")
	first, second := keyLine.FindSubmatch(before), keyLine.FindSubmatch([]byte(printed))
	if first == nil || second == nil || bytes.Equal(first[1], second[1]) {
		t.Errorf("the keys of two examples are %q and %q, want two random ones", first, second)
	}
	if keyLine.ReplaceAllString(printed, "") != keyLine.ReplaceAllString(string(before), "") {
		t.Error("init to - does not print the example")
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the file: %v, %v", info.Mode(), err)
	}
	if code, stdout, stderr := command(t, "config", "init"); code != 0 || !strings.Contains(stdout, ".sandbox.toml") {
		t.Errorf("init without a file does not write the default one: exit %d: %s%s", code, stdout, stderr)
	}
}

func TestConfigPrintHidesTheKey(t *testing.T) {
	file := write(t, "[server]\napi_key = \"a-key-that-is-never-printed\"\n[runtime]\ntype = \"docker\"\nexecd_image = \"e\"\n")
	code, stdout, stderr := command(t, "--config", file, "config", "print")
	if code != 0 || strings.Contains(stdout, "never-printed") || !strings.Contains(stdout, "execd_image = ") {
		t.Errorf("exit %d: %s%s", code, stdout, stderr)
	}
}

func TestConfigErrorsNameFileLineKeyAndRule(t *testing.T) {
	file := write(t, "[server]\nport = 70000\nprot = 1\n[runtime]\ntype = \"docker\"\nexecd_image = \"e\"\n[egress]\nimage = \"x y\"\n")
	code, _, stderr := command(t, "--config", file, "config", "check")
	if code != commandline.ExitFailure {
		t.Errorf("exit %d", code)
	}
	for _, want := range []string{file + ":2: server.port: ", file + ":3: server.prot: unknown key", file + ":8: egress.image: must be an image reference without spaces"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("%q is missing in:\n%s", want, stderr)
		}
	}
}

// TestSigningKeyIsRead: its content is part of the configuration, so a start with another is not to
// be tried again.
func TestSigningKeyIsRead(t *testing.T) {
	directory := t.TempDir()
	for name, content := range map[string]string{"missing": "", "short": "abc\n"} {
		key := filepath.Join(directory, name)
		if content != "" {
			if err := os.WriteFile(key, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		file := write(t, "[server]\nsigning_key = \""+key+"\"\n[runtime]\ntype = \"docker\"\nexecd_image = \"e\"\n")
		for _, test := range []struct {
			args []string
			code int
		}{{[]string{"config", "check"}, commandline.ExitFailure}, {nil, exitConfig}} {
			code, _, stderr := command(t, append([]string{"--config", file}, test.args...)...)
			if code != test.code || !strings.Contains(stderr, "server.signing_key: ") || !strings.Contains(stderr, key) {
				t.Errorf("%s, %q: exit %d: %s", name, test.args, code, stderr)
			}
		}
	}
}

func TestConfigIsFoundByVariableAndMissingOneTellsHowToWriteIt(t *testing.T) {
	t.Run("row lifecycle/environment/SANDBOX_CONFIG_PATH", func(t *testing.T) {
		file := write(t, "[runtime]\ntype = \"docker\"\nexecd_image = \"e\"\n")
		t.Setenv("SANDBOX_CONFIG_PATH", file)
		if code, stdout, stderr := command(t, "config", "check"); code != 0 || !strings.Contains(stdout, file) {
			t.Errorf("exit %d: %s%s", code, stdout, stderr)
		}
		t.Setenv("SANDBOX_CONFIG_PATH", filepath.Join(t.TempDir(), "none.toml"))
		for _, test := range []struct {
			args []string
			code int
		}{{[]string{"config", "check"}, commandline.ExitFailure}, {nil, exitConfig}} {
			if code, _, stderr := command(t, test.args...); code != test.code || !strings.Contains(stderr, "config init") {
				t.Errorf("%q: exit %d: %s", test.args, code, stderr)
			}
		}
	})
}

// TestLogLevel: with each level the log has lines of that level and worse. The start fails, because
// there is no engine.
func TestLogLevel(t *testing.T) {
	t.Setenv("DOCKER_HOST", "unix://"+filepath.Join(t.TempDir(), "no.sock"))
	for level, want := range map[string]struct{ info, warn bool }{
		"DEBUG": {true, true}, "INFO": {true, true}, "WARNING": {false, true}, "ERROR": {false, false},
	} {
		t.Run("row lifecycle/configuration/server.log_level: "+level, func(t *testing.T) {
			file := write(t, "[server]\nhost = \"127.0.0.1\"\nport = 0\ndata_dir = \""+t.TempDir()+"\"\nlog_level = \""+level+"\"\n[runtime]\ntype = \"docker\"\nexecd_image = \"e\"\n")
			code, _, stderr := command(t, "--config", file)
			if code != commandline.ExitFailure || !strings.Contains(stderr, "no.sock") {
				t.Errorf("%s: exit %d: %s", level, code, stderr)
			}
			if info, warn := strings.Contains(stderr, `"level":"info"`), strings.Contains(stderr, `"level":"warn"`); info != want.info || warn != want.warn {
				t.Errorf("%s: lines of INFO %t, of WARNING %t: %s", level, info, warn, stderr)
			}
		})
	}
}

// TestExposedServiceSaysSo: at every start and at every level of the log.
func TestExposedServiceSaysSo(t *testing.T) {
	t.Setenv("DOCKER_HOST", "unix://"+filepath.Join(t.TempDir(), "no.sock"))
	const says = "demands no API key"
	for name, test := range map[string]struct {
		settings string
		want     bool
	}{
		"every address":          {`host = "0.0.0.0"`, true},
		"every IPv6 address":     {`host = "::"`, true},
		"loopback":               {`host = "127.0.0.1"`, false},
		"loopback by name":       {`host = "localhost"`, false},
		"with a key":             {`host = "0.0.0.0"` + "\napi_key = \"0123456789abcdef0123456789abcdef\"", false},
		"the document's default": {``, true},
	} {
		t.Run(name, func(t *testing.T) {
			file := write(t, "[server]\nport = 0\ndata_dir = \""+t.TempDir()+"\"\nlog_level = \"ERROR\"\n"+test.settings+
				"\n[runtime]\ntype = \"docker\"\nexecd_image = \"e\"\n")
			for range 2 {
				if _, _, stderr := command(t, "--config", file); strings.Contains(stderr, says) != test.want {
					t.Errorf("want it said: %t\n%s", test.want, stderr)
				}
			}
			if _, stdout, _ := command(t, "--config", file, "config", "check"); strings.Contains(stdout, says) != test.want {
				t.Errorf("config check: %s", stdout)
			}
		})
	}
}

// TestUnit: the unit that ships does not restart the service where that cannot help, and keeps its
// files to itself.
func TestUnit(t *testing.T) {
	unit, err := os.ReadFile("../../../deploy/systemd/sandbox-server.service")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		fmt.Sprintf("RestartPreventExitStatus=%d %d", commandline.ExitUsage, exitConfig), "ExecReload=/bin/kill -HUP $MAINPID",
		"StateDirectory=sandbox-server", "StateDirectoryMode=0700", "UMask=0077",
	} {
		if !strings.Contains(string(unit), "\n"+line+"\n") {
			t.Errorf("the unit lacks %s", line)
		}
	}
}

func TestCommandLine(t *testing.T) {
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--help"}, 0, "Usage:\n  sandbox-server "},
		{[]string{"version"}, 0, "sandbox-server "},
		{[]string{"--no-such-flag"}, commandline.ExitUsage, "no-such-flag"},
		{[]string{"-config", "x"}, commandline.ExitUsage, "two dashes"},
		{[]string{"confgi"}, commandline.ExitUsage, "confgi"},
		{[]string{"config", "chekc"}, commandline.ExitUsage, "chekc"},
	} {
		code, stdout, stderr := command(t, test.args...)
		if code != test.code || !strings.Contains(stdout+stderr, test.want) {
			t.Errorf("%q: exit %d, want %d; output lacks %q: %s%s", test.args, code, test.code, test.want, stdout, stderr)
		}
	}
}

func TestHelp(t *testing.T) { commandlinetest.CheckHelp(t, newRoot) }

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "sandbox.toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestLogLevels(t *testing.T) {
	for name, want := range map[config.LogLevel]zerolog.Level{
		config.LogLevelDebug: zerolog.DebugLevel, config.LogLevelInfo: zerolog.InfoLevel,
		config.LogLevelWarning: zerolog.WarnLevel, config.LogLevelError: zerolog.ErrorLevel,
	} {
		if got := level(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}

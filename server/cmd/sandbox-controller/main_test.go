package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"sandbox.internal/server/commandline"
	"sandbox.internal/server/commandline/commandlinetest"
	"sandbox.internal/test/wait"
)

func TestMain(m *testing.M) {
	// lumberjack's goroutine, which removes old files, lives as long as the process.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("gopkg.in/natefinch/lumberjack%2ev2.(*Logger).millRun"),
		goleak.IgnoreTopFunction("gopkg.in/natefinch/lumberjack.v2.(*Logger).millRun"))
}

// flagged parses a command line that must be right.
func flagged(t *testing.T, args ...string) settings {
	t.Helper()
	var parsed settings
	root := newRoot(func(s settings, _ io.Writer) error {
		parsed = s
		return nil
	})
	var errs bytes.Buffer
	if code := commandline.Run(root, args, io.Discard, &errs); code != 0 {
		t.Fatalf("exit %d: %s", code, errs.String())
	}
	return parsed
}

// run carries out a command line as the program does.
func run(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = commandline.Run(newRoot(serve), args, &out, &errs)
	return code, out.String(), errs.String()
}

// written logs a line at each level with the settings and returns what came to stderr.
func written(t *testing.T, s logSettings) string {
	t.Helper()
	var out bytes.Buffer
	logger, finish, err := newLogger(s, &out)
	if err != nil {
		t.Fatal(err)
	}
	defer finish()
	logger.Info("an info line", "key", "value")
	logger.V(1).Info("a debug line")
	logger.V(4).Info("a line of verbosity 4")
	logger.Error(fmt.Errorf("the cause"), "an error line")
	return out.String()
}

// fill writes megabytes into the log.
func fill(t *testing.T, s logSettings, megabytes int) {
	t.Helper()
	logger, finish, err := newLogger(s, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer finish()
	line := strings.Repeat("x", 64<<10)
	for range megabytes * 16 {
		logger.Info(line)
	}
}

// eventually waits until the directory's files, besides the log itself, are as wanted.
func eventually(t *testing.T, directory string, wanted func(names []string) bool) {
	t.Helper()
	var names []string
	wait.Until(t, "the directory has the files that it should", func() bool {
		var err error
		if names, err = filepath.Glob(filepath.Join(directory, "controller-*")); err != nil {
			t.Fatal(err)
		}
		return wanted(names)
	}, func() any { return names })
}

func TestFlagsOfTheLog(t *testing.T) {
	file := func(t *testing.T, args ...string) (logSettings, string) {
		directory := t.TempDir()
		s := flagged(t, append([]string{"--enable-file-log", "--log-file-path", filepath.Join(directory, "controller.log"), "--log-max-size", "1"}, args...)...)
		return s.log, directory
	}
	t.Run("row lifecycle/controller/--enable-file-log", func(t *testing.T) {
		if flagged(t).log.toFile {
			t.Error("the file log is on by default")
		}
		s, _ := file(t)
		toStderr := written(t, s)
		if text, err := os.ReadFile(s.path); err != nil || string(text) != toStderr || toStderr == "" {
			t.Errorf("the file has %q and stderr %q (%v)", text, toStderr, err)
		}
		s.toFile, s.path = false, filepath.Join(t.TempDir(), "controller.log")
		written(t, s)
		if _, err := os.Stat(s.path); err == nil {
			t.Error("the file is written without --enable-file-log")
		}
	})
	t.Run("row lifecycle/controller/--log-file-path", func(t *testing.T) {
		if path := flagged(t).log.path; path != "/var/log/sandbox-controller/controller.log" {
			t.Errorf("the default is %s", path)
		}
		s, directory := file(t)
		s.path = filepath.Join(directory, "a", "b", "controller.log") // the directories are made
		written(t, s)
		if _, err := os.Stat(s.path); err != nil {
			t.Error(err)
		}
		s.path = filepath.Join(s.path, "below-a-file")
		if _, _, err := newLogger(s, io.Discard); err == nil || !strings.Contains(err.Error(), "--log-file-path") {
			t.Errorf("a path that cannot be: %v", err)
		}
	})
	t.Run("row lifecycle/controller/--log-max-size", func(t *testing.T) {
		if size := flagged(t).log.maxSize; size != 100 {
			t.Errorf("the default is %d", size)
		}
		s, directory := file(t, "--log-compress=false")
		fill(t, s, 3)
		eventually(t, directory, func(names []string) bool { return len(names) >= 2 })
		if info, err := os.Stat(s.path); err != nil || info.Size() > 1<<20 {
			t.Errorf("the file is greater than 1 MB: %v, %v", info, err)
		}
	})
	t.Run("row lifecycle/controller/--log-max-backups", func(t *testing.T) {
		if n := flagged(t).log.maxBackups; n != 10 {
			t.Errorf("the default is %d", n)
		}
		s, directory := file(t, "--log-compress=false", "--log-max-backups", "1")
		for _, day := range []string{"01", "02", "03"} { // older files of the same log
			old(t, directory, "2020-01-"+day+"T00-00-00.000")
		}
		s.maxAge = 0
		fill(t, s, 2)
		eventually(t, directory, func(names []string) bool { return len(names) == 1 && !strings.Contains(names[0], "T00-00-00") })
	})
	t.Run("row lifecycle/controller/--log-max-age", func(t *testing.T) {
		if days := flagged(t).log.maxAge; days != 30 {
			t.Errorf("the default is %d", days)
		}
		s, directory := file(t, "--log-compress=false", "--log-max-age", "30", "--log-max-backups", "0")
		tooOld := old(t, directory, time.Now().Add(-31*24*time.Hour).UTC().Format("2006-01-02T15-04-05.000"))
		young := old(t, directory, time.Now().Add(-29*24*time.Hour).UTC().Format("2006-01-02T15-04-05.000"))
		fill(t, s, 2)
		eventually(t, directory, func(names []string) bool {
			text := strings.Join(names, " ")
			return !strings.Contains(text, tooOld) && strings.Contains(text, young) && len(names) >= 2
		})
	})
	t.Run("row lifecycle/controller/--log-compress", func(t *testing.T) {
		if !flagged(t).log.compress || flagged(t, "--log-compress=false").log.compress {
			t.Error("the default is false, or the flag does nothing")
		}
		s, directory := file(t)
		fill(t, s, 2)
		// All of them: one that is still being compressed would appear while the directory is
		// removed.
		eventually(t, directory, func(names []string) bool {
			return len(names) > 0 && !slices.ContainsFunc(names, func(name string) bool {
				return !strings.HasSuffix(name, ".log.gz")
			})
		})
	})
	t.Run("row lifecycle/controller/--zap-encoder", func(t *testing.T) {
		s := flagged(t)
		if text := written(t, s.log); s.log.encoder != "" || json.Valid([]byte(strings.SplitN(text, "\n", 2)[0])) || !strings.Contains(text, "an info line") {
			t.Errorf("by default %q, the log is %q", s.log.encoder, text)
		}
		var line struct{ Msg, Level, Key string }
		text := written(t, flagged(t, "--zap-encoder", "json").log)
		if err := json.Unmarshal([]byte(strings.SplitN(text, "\n", 2)[0]), &line); err != nil || line.Msg != "an info line" || line.Level != "info" || line.Key != "value" {
			t.Errorf("as JSON: %v: %q", err, text)
		}
	})
	t.Run("row lifecycle/controller/--zap-log-level", func(t *testing.T) {
		lines := []string{"an error line", "an info line", "a debug line", "a line of verbosity 4"}
		for level, want := range map[string]int{"error": 1, "": 2, "info": 2, "0": 2, "debug": 3, "1": 3, "4": 4} {
			text := written(t, flagged(t, "--zap-log-level", level).log)
			for i, line := range lines {
				if strings.Contains(text, line) != (i < want) {
					t.Errorf("level %q: %q in %q", level, line, text)
				}
			}
		}
	})
}

// old makes a file that looks like a former log, and returns its name.
func old(t *testing.T, directory, stamp string) string {
	t.Helper()
	name := "controller-" + stamp + ".log"
	if err := os.WriteFile(filepath.Join(directory, name), []byte("old\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestCommandLine(t *testing.T) {
	s := flagged(t, "--namespace", "boxes", "--leader-elect", "--metrics-bind-address", "0", "--kubeconfig", "file")
	if s.options.Namespace != "boxes" || !s.options.LeaderElection || s.options.MetricsAddress != "0" || s.options.HealthAddress != ":8083" || s.kubeconfig != "file" {
		t.Errorf("%+v", s)
	}
	for want, args := range map[string][]string{
		"unexpected argument":          {"x"},
		"unknown flag: --port":         {"--port", "1"},
		"--zap-log-level: must be":     {"--zap-log-level", "loud"},
		"--zap-encoder: must be":       {"--zap-encoder", "xml"},
		"--log-max-size: must be":      {"--log-max-size", "0"},
		"--log-max-backups: must not":  {"--log-max-backups", "-1"},
		"--log-max-age: must not":      {"--log-max-age", "-1"},
		"--log-file-path: must not be": {"--enable-file-log", "--log-file-path", ""},
	} {
		code, _, stderr := run(args...)
		if code != commandline.ExitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%q: exit %d: %s", args, code, stderr)
		}
	}
	missing := filepath.Join(t.TempDir(), "missing")
	code, _, stderr := run("--kubeconfig", missing)
	if code != commandline.ExitFailure || !strings.Contains(stderr, "--kubeconfig") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	if code, stdout, _ := run("version"); code != 0 || !strings.Contains(stdout, "sandbox-controller ") {
		t.Errorf("version: exit %d: %s", code, stdout)
	}
}

func TestHelpAndDocumentation(t *testing.T) {
	program := func() *cobra.Command { return newRoot(serve) }
	commandlinetest.CheckHelp(t, program)
	commandlinetest.CheckDocumented(t, program(), "../../../docs/kubernetes-operations.md", "## Controller")
}

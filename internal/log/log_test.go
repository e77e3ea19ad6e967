package log_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"sandbox.internal/internal/log"
)

func TestLoggerLevels(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		level int
		want  []string
	}{
		{"emergency", 0, nil},
		{"alert", 1, nil},
		{"critical", 2, nil},
		{"error", 3, []string{"error"}},
		{"warning", 4, []string{"error", "warn"}},
		{"notice", 5, []string{"error", "warn"}},
		{"info", 6, []string{"error", "warn", "info"}},
		{"debug", 7, []string{"error", "warn", "info", "debug"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			logger, closer, err := log.New(log.Options{Level: tt.level}, &out)
			if err != nil {
				t.Fatal(err)
			}
			logger.Error().Msg("m")
			logger.Warn().Msg("m")
			logger.Info().Msg("m")
			logger.Debug().Msg("m")
			if err := closer.Close(); err != nil {
				t.Fatal(err)
			}
			var got []string
			for line := range strings.Lines(out.String()) {
				var entry struct{ Level string }
				if err := json.Unmarshal([]byte(line), &entry); err != nil {
					t.Fatalf("line %q: %v", line, err)
				}
				got = append(got, entry.Level)
			}
			if strings.Join(got, " ") != strings.Join(tt.want, " ") {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestLoggerFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new", "directory", "execd.log")
	var stdout bytes.Buffer
	before := time.Now()
	for _, message := range []string{"first", "second"} {
		logger, closer, err := log.New(log.Options{Level: 6, File: path}, &stdout)
		if err != nil {
			t.Fatal(err)
		}
		logger.Info().Str("field", "value").Msg(message)
		if err := closer.Close(); err != nil {
			t.Fatal(err)
		}
	}

	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	if len(lines) != 2 || stdout.Len() != 0 {
		t.Fatalf("the file has %q, stdout has %q; want two lines in the file alone", lines, stdout.String())
	}
	var entry struct{ Time, Message, Field string }
	if err := json.Unmarshal([]byte(lines[1]), &entry); err != nil {
		t.Fatal(err)
	}
	if entry.Message != "second" || entry.Field != "value" {
		t.Errorf("second line is %q", lines[1])
	}
	if !regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$`).MatchString(entry.Time) {
		t.Errorf("time %q is not RFC 3339 in UTC with milliseconds", entry.Time)
	}
	at, err := time.Parse(time.RFC3339, entry.Time)
	if err != nil || at.Before(before.Truncate(time.Millisecond)) || at.After(time.Now()) {
		t.Errorf("time %q is not now (%v)", entry.Time, err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode is %o, want 600", info.Mode().Perm())
	}
}

func TestLoggerKeepsTokensOut(t *testing.T) {
	t.Parallel()
	for _, token := range []string{"a-token", `with"quotes\and&more%/`, "four"} {
		var out bytes.Buffer
		logger, _, err := log.New(log.Options{Level: 7, Secrets: []string{token, "jupyter-" + token}}, &out)
		if err != nil {
			t.Fatal(err)
		}
		forms := []string{token, "jupyter-" + token, url.QueryEscape(token), url.PathEscape(token), fmt.Sprintf("%q", token)}
		for _, form := range forms {
			logger.Debug().Str("path", "/a/"+form+"/b").Err(errors.New(form)).Msg("x" + form + form)
		}
		for line := range strings.Lines(out.String()) {
			var entry struct{ Path string }
			if err := json.Unmarshal([]byte(line), &entry); err != nil || !strings.HasPrefix(entry.Path, "/a/") || !strings.HasSuffix(entry.Path, "/b") {
				t.Errorf("%q has become %q: %v", token, line, err)
			}
			for _, form := range forms {
				if strings.Contains(entry.Path, form) || strings.Contains(line, form) {
					t.Errorf("%q shows %q", line, form)
				}
			}
		}
	}
}

func TestLoggerNamesTheVariable(t *testing.T) {
	t.Parallel()
	_, _, err := log.New(log.Options{File: t.TempDir()}, &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "EXECD_LOG_FILE") {
		t.Errorf("error is %v, want one that names EXECD_LOG_FILE", err)
	}
}

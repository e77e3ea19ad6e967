package main

import (
	"errors"
	"flag"
	"io"
	"strings"
	"testing"

	"sandbox.internal/internal/tasks"
)

func env(pairs map[string]string) func(string) string {
	return func(name string) string { return pairs[name] }
}

func TestParsePrecedence(t *testing.T) {
	defaults := options{port: tasks.Port, stateDir: "/var/lib/task-executor", mainMarker: tasks.MainMarker, logLevel: 6}
	with := func(change func(*options)) options {
		s := defaults
		change(&s)
		return s
	}
	for name, test := range map[string]struct {
		args []string
		env  map[string]string
		want options
	}{
		"defaults": {nil, map[string]string{"TASK_EXECUTOR_PORT": ""}, defaults},
		"variables override defaults": {nil, map[string]string{"TASK_EXECUTOR_PORT": "1", "TASK_EXECUTOR_TOKEN": "x"},
			with(func(s *options) { s.port, s.token = 1, "x" })},
		"flags override variables": {[]string{"--port=2", "--token="}, map[string]string{"TASK_EXECUTOR_PORT": "1", "TASK_EXECUTOR_TOKEN": "x"},
			with(func(s *options) { s.port = 2 })},
		"the rest": {[]string{"--host=::1", "--state-dir=/x/../y", "--main-marker=A=", "--log-level=7"}, nil,
			with(func(s *options) { s.host, s.stateDir, s.mainMarker, s.logLevel = "::1", "/y", "A=", 7 })},
	} {
		if got, err := parse(test.args, env(test.env), io.Discard); err != nil || got != test.want {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, test.want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, test := range []struct {
		args []string
		env  map[string]string
		want string
	}{
		{[]string{"--port=x"}, nil, `flag --port: must be a whole number from 0 to 65535, got "x"`},
		{nil, map[string]string{"TASK_EXECUTOR_PORT": "65536"}, "environment variable TASK_EXECUTOR_PORT"},
		{[]string{"--token=a b"}, nil, "visible ASCII"},
		{[]string{"--host=name"}, nil, "must be an IP address"},
		{[]string{"--state-dir=x"}, nil, "must be an absolute path"},
		{[]string{"--state-dir=/" + strings.Repeat("x", 100)}, nil, "at most 90 bytes"},
		{[]string{"--main-marker=x"}, nil, "NAME=VALUE"},
		{[]string{"--nothing"}, nil, "--help"},
		{[]string{"x"}, nil, "only flags"},
	} {
		_, err := parse(test.args, env(test.env), io.Discard)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q %v: %v; want %q", test.args, test.env, err, test.want)
		}
		if err != nil && strings.Contains(err.Error(), "a b") {
			t.Errorf("the error shows the token: %v", err)
		}
	}
}

func TestHelp(t *testing.T) {
	var usage strings.Builder
	if _, err := parse([]string{"--help"}, env(nil), &usage); !errors.Is(err, flag.ErrHelp) {
		t.Fatal(err)
	}
	for _, row := range table {
		if !strings.Contains(usage.String(), "--"+row.Flag+" ") || !strings.Contains(usage.String(), row.Env) {
			t.Errorf("--help does not mention --%s and %s", row.Flag, row.Env)
		}
	}
}

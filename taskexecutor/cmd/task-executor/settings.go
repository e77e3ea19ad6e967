package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"strings"

	"sandbox.internal/internal/settings"
	"sandbox.internal/internal/tasks"
	"sandbox.internal/taskexecutor"
)

// options are the effective settings of the executor.
type options struct {
	token      string // of requests; empty means none
	key        string // the controller's public key in its text form; empty means none
	pod        string // UID of the pod
	host       string // IP address to listen on; empty means every interface
	port       int
	stateDir   string
	mainMarker string // NAME=VALUE
	logLevel   int    // syslog severity
}

func (s options) addr() string { return net.JoinHostPort(s.host, strconv.Itoa(s.port)) }

// table holds every setting.
var table = []settings.Setting[options]{
	{
		Flag: "token", Env: "TASK_EXECUTOR_TOKEN",
		Meaning: "secret of the API, beside the controller's proofs; a flag can be read by all processes of the pod", Set: setToken,
	},
	{
		Flag: "controller-key", Env: "TASK_EXECUTOR_CONTROLLER_KEY",
		Meaning: "public key of the controller, set by it; without this and a token anyone may use the API", Set: setKey,
	},
	{Flag: "pod", Env: "TASK_EXECUTOR_POD", Meaning: "UID of the pod, which the controller's proofs are for; set by it", Set: setPod},
	{Flag: "host", Env: "TASK_EXECUTOR_HOST", Meaning: "IP address of the API; empty means every interface", Set: setHost},
	{Flag: "port", Env: "TASK_EXECUTOR_PORT", Default: strconv.Itoa(tasks.Port), Meaning: "port of the API; 0 takes any free one", Set: setPort},
	{
		Flag: "state-dir", Env: "TASK_EXECUTOR_STATE_DIR", Default: "/var/lib/task-executor",
		Meaning: "directory of the records; a volume, so that it outlives the container", Set: setStateDir,
	},
	{
		Flag: "main-marker", Env: "TASK_EXECUTOR_MAIN_MARKER", Default: tasks.MainMarker,
		Meaning: "variable that the main container has, and no other", Set: setMainMarker,
	},
	{Flag: "log-level", Env: "TASK_EXECUTOR_LOG_LEVEL", Default: "6", Meaning: settings.LogLevels, Set: setLogLevel},
}

func parse(args []string, getenv func(string) string, usage io.Writer) (options, error) {
	return settings.Parse(table, args, getenv, usage)
}

func setToken(s *options, value string) (err error) {
	s.token, err = settings.Token(value)
	return err
}

func setKey(s *options, value string) error {
	if value != "" {
		if _, err := tasks.ParseKey(value); err != nil {
			return err
		}
	}
	s.key = value
	return nil
}

func setPod(s *options, value string) error {
	s.pod = value
	return nil
}

// access is who may use the API.
func (s options) access() (taskexecutor.Access, error) {
	access := taskexecutor.Access{Token: s.token, Pod: s.pod}
	if s.key == "" {
		return access, nil
	}
	if s.pod == "" {
		return access, errors.New("TASK_EXECUTOR_POD: is required with TASK_EXECUTOR_CONTROLLER_KEY")
	}
	var err error
	access.Key, err = tasks.ParseKey(s.key)
	return access, err
}

func setHost(s *options, value string) (err error) {
	s.host, err = settings.Host(value)
	return err
}

func setPort(s *options, value string) (err error) {
	s.port, err = settings.Port(value)
	return err
}

func setLogLevel(s *options, value string) (err error) {
	s.logLevel, err = settings.LogLevel(value)
	return err
}

// maxStateDir leaves room for the name of a socket, whose path may have 107 bytes.
const maxStateDir = 90

func setStateDir(s *options, value string) error {
	if !filepath.IsAbs(value) || len(value) > maxStateDir {
		return fmt.Errorf("must be an absolute path of at most %d bytes, got %q", maxStateDir, value)
	}
	s.stateDir = filepath.Clean(value)
	return nil
}

func setMainMarker(s *options, value string) error {
	if name, _, ok := strings.Cut(value, "="); !ok || name == "" || strings.ContainsRune(value, 0) {
		return fmt.Errorf("must be a variable in the form NAME=VALUE, got %q", value)
	}
	s.mainMarker = value
	return nil
}

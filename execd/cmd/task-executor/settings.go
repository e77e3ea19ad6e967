package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"

	"sandbox.internal/runtime/tasks"
)

// settings are the effective settings of the executor.
type settings struct {
	token      string // of requests; empty turns authentication off
	host       string // IP address to listen on; empty means every interface
	port       int
	stateDir   string
	mainMarker string // NAME=VALUE
	logLevel   int    // syslog severity
}

func (s settings) addr() string { return net.JoinHostPort(s.host, strconv.Itoa(s.port)) }

// setting is one row of the table: its names, its default in the notation of its flag, and how a value is checked and stored.
type setting struct {
	flag, env, fallback, meaning string
	set                          func(*settings, string) error
}

func table() []setting {
	return []setting{
		{"token", "TASK_EXECUTOR_TOKEN", "", "secret of the API; empty turns authentication off; a flag can be read by all processes of the pod", setToken},
		{"host", "TASK_EXECUTOR_HOST", "", "IP address of the API; empty means every interface", setHost},
		{"port", "TASK_EXECUTOR_PORT", strconv.Itoa(tasks.Port), "port of the API; 0 takes any free one", setPort},
		{"state-dir", "TASK_EXECUTOR_STATE_DIR", "/var/lib/task-executor", "folder of the records; a volume, so that it outlives the container", setStateDir},
		{"main-marker", "TASK_EXECUTOR_MAIN_MARKER", tasks.MainMarker, "variable that the main container has, and no other", setMainMarker},
		{"log-level", "TASK_EXECUTOR_LOG_LEVEL", "6", "0 Emergency, 1 Alert, 2 Critical, 3 Error, 4 Warning, 5 Notice, 6 Info, 7 Debug", setLogLevel},
	}
}

// parse computes the settings from the command line (without the program's name) and the environment. An empty variable counts as
// unset; an empty flag does not. The error names the flag or variable and the rule that it breaks. For -h and --help it writes the
// table of settings to usage and returns flag.ErrHelp.
func parse(args []string, getenv func(string) string, usage io.Writer) (settings, error) {
	given := make(map[string]string)
	flags := flag.NewFlagSet("task-executor", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Usage = func() {}
	for _, row := range table() {
		flags.Func(row.flag, row.meaning, func(value string) error {
			given[row.flag] = value
			return nil
		})
	}
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return settings{}, errors.Join(err, writeUsage(usage))
	case err != nil:
		return settings{}, fmt.Errorf("%w (--help shows every flag)", err)
	case flags.NArg() > 0:
		return settings{}, fmt.Errorf("unexpected argument %q: only flags are accepted here", flags.Arg(0))
	}
	var s settings
	for _, row := range table() {
		value, source := row.fallback, "default of --"+row.flag
		if fromEnv := getenv(row.env); fromEnv != "" {
			value, source = fromEnv, "environment variable "+row.env
		}
		if fromFlag, ok := given[row.flag]; ok {
			value, source = fromFlag, "flag --"+row.flag
		}
		if err := row.set(&s, value); err != nil {
			return settings{}, fmt.Errorf("%s: %w", source, err)
		}
	}
	return s, nil
}

func writeUsage(w io.Writer) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "FLAG\tENVIRONMENT\tDEFAULT\tMEANING")
	for _, row := range table() {
		fallback := row.fallback
		if fallback == "" {
			fallback = "-"
		}
		fmt.Fprintf(out, "--%s\t%s\t%s\t%s\n", row.flag, row.env, fallback, row.meaning)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write usage: %w", err)
	}
	_, err := fmt.Fprintln(w, "\nA flag overrides its environment variable, which overrides the default.")
	return err
}

// setToken keeps the value itself out of the message: errors end in logs.
func setToken(s *settings, value string) error {
	for _, char := range []byte(value) {
		if char <= ' ' || char > '~' {
			return errors.New("must be visible ASCII without spaces, because it travels in an HTTP header")
		}
	}
	s.token = value
	return nil
}

func setHost(s *settings, value string) error {
	if value != "" {
		if _, err := netip.ParseAddr(value); err != nil {
			return fmt.Errorf("must be an IP address, or empty for every interface, got %q", value)
		}
	}
	s.host = value
	return nil
}

func setPort(s *settings, value string) (err error) {
	s.port, err = parseInt(value, 65535)
	return err
}

func setLogLevel(s *settings, value string) (err error) {
	s.logLevel, err = parseInt(value, 7)
	return err
}

func parseInt(value string, maximum int) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 || n > maximum {
		return 0, fmt.Errorf("must be a whole number from 0 to %d, got %q", maximum, value)
	}
	return n, nil
}

// maxStateDir leaves room for the name of a socket, whose path may have 107 bytes.
const maxStateDir = 90

func setStateDir(s *settings, value string) error {
	if !filepath.IsAbs(value) || len(value) > maxStateDir {
		return fmt.Errorf("must be an absolute path of at most %d bytes, got %q", maxStateDir, value)
	}
	s.stateDir = filepath.Clean(value)
	return nil
}

func setMainMarker(s *settings, value string) error {
	if name, _, ok := strings.Cut(value, "="); !ok || name == "" || strings.ContainsRune(value, 0) {
		return fmt.Errorf("must be a variable in the form NAME=VALUE, got %q", value)
	}
	s.mainMarker = value
	return nil
}

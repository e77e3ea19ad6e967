// Package log opens the logs of execd's programs.
package log

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/rs/zerolog"
)

// timeLayout is RFC 3339 with milliseconds.
const timeLayout = "2006-01-02T15:04:05.000Z07:00"

// Options say what is logged and where.
type Options struct {
	// Level is a syslog severity, 0 (Emergency) to 7 (Debug): messages of this severity and worse
	// are written.
	Level int
	// File is the path of the log; empty means the standard output.
	File string
	// Secrets never get into the log; those of less than four characters are not looked for.
	Secrets []string
}

// New opens the log: one JSON object per line, with the time in UTC, to the file or, when there is
// none, to stdout. The file is appended to; it and missing directories above it are created for the
// program's user alone. The caller closes the returned closer after the last message.
func New(o Options, stdout io.Writer) (zerolog.Logger, io.Closer, error) {
	out, closer := stdout, io.NopCloser(nil)
	if o.File != "" {
		file, err := openFile(o.File)
		if err != nil {
			return zerolog.Nop(), nil, fmt.Errorf("log file (EXECD_LOG_FILE): %w", err)
		}
		out, closer = file, file
	}
	return zerolog.New(withoutSecrets(out, o.Secrets)).Level(level(o.Level)).Hook(zerolog.HookFunc(stamp)), closer, nil
}

func openFile(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
}

// stamp adds the time. zerolog's own timestamp takes its format from a variable shared by the whole
// program, which a package must not change for others.
func stamp(event *zerolog.Event, _ zerolog.Level, _ string) {
	event.Str(zerolog.TimestampFieldName, time.Now().UTC().Format(timeLayout))
}

// level maps a syslog severity to the lowest zerolog level that it lets through. zerolog has no
// Notice: a limit of Notice hides Info, so what is left begins at Warn. Emergency and Alert share
// the highest level there is.
func level(severity int) zerolog.Level {
	switch severity {
	case 0, 1:
		return zerolog.PanicLevel
	case 2:
		return zerolog.FatalLevel
	case 3:
		return zerolog.ErrorLevel
	case 4, 5:
		return zerolog.WarnLevel
	case 6:
		return zerolog.InfoLevel
	default:
		return zerolog.DebugLevel
	}
}

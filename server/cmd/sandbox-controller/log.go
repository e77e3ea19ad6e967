package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/go-logr/logr"
	"github.com/go-logr/zapr"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"gopkg.in/natefinch/lumberjack.v2"
)

// logSettings are the flags of the log.
type logSettings struct {
	level, encoder string
	toFile         bool
	path           string
	maxSize        int // MB
	maxBackups     int
	maxAge         int // days
	compress       bool
}

// check returns an error that names the flag and the rule.
func (s logSettings) check() error {
	if _, err := s.zapLevel(); err != nil {
		return err
	}
	switch {
	case s.encoder != "" && s.encoder != "json" && s.encoder != "console":
		return fmt.Errorf("--zap-encoder: must be json or console (got %q)", s.encoder)
	case s.toFile && s.path == "":
		return errors.New("--log-file-path: must not be empty with --enable-file-log")
	case s.maxSize < 1:
		return fmt.Errorf("--log-max-size: must be at least 1 MB (got %d)", s.maxSize)
	case s.maxBackups < 0:
		return fmt.Errorf("--log-max-backups: must not be negative (got %d)", s.maxBackups)
	case s.maxAge < 0:
		return fmt.Errorf("--log-max-age: must not be negative (got %d)", s.maxAge)
	}
	return nil
}

// zapLevel is the level as zap counts: a number N is the verbosity V(N), which zap has as -N.
func (s logSettings) zapLevel() (zapcore.Level, error) {
	switch s.level {
	case "", "info":
		return zapcore.InfoLevel, nil
	case "debug":
		return zapcore.DebugLevel, nil
	case "error":
		return zapcore.ErrorLevel, nil
	}
	if n, err := strconv.ParseUint(s.level, 10, 7); err == nil {
		return zapcore.Level(-int(n)), nil
	}
	return 0, fmt.Errorf("--zap-log-level: must be debug, info, error or a number from 0 to 127 (got %q)", s.level)
}

// newLogger returns a log that goes to stderr and, when asked, to a file that is rotated, and what
// closes it.
func newLogger(s logSettings, stderr io.Writer) (logr.Logger, func(), error) {
	level, err := s.zapLevel()
	if err != nil {
		return logr.Logger{}, nil, err
	}
	config := zap.NewProductionEncoderConfig()
	config.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	encoder := zapcore.NewConsoleEncoder(config)
	if s.encoder == "json" {
		encoder = zapcore.NewJSONEncoder(config)
	}
	cores := []zapcore.Core{zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(stderr)), level)}
	finish := func() {}
	if s.toFile {
		file := &lumberjack.Logger{Filename: s.path, MaxSize: s.maxSize, MaxBackups: s.maxBackups, MaxAge: s.maxAge, Compress: s.compress}
		if _, err := file.Write(nil); err != nil { // opens it: a path that cannot be written must not be found out later
			return logr.Logger{}, nil, fmt.Errorf("--log-file-path: %w", err)
		}
		cores = append(cores, zapcore.NewCore(encoder, zapcore.AddSync(file), level))
		finish = func() { _ = file.Close() }
	}
	return zapr.NewLogger(zap.New(zapcore.NewTee(cores...))), finish, nil
}

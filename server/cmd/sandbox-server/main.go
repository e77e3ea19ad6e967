// Command sandbox-server is the lifecycle service: it creates, pauses, resumes, renews and deletes sandboxes.
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/rs/zerolog"

	"sandbox.internal/server/api"
	"sandbox.internal/server/app"
	"sandbox.internal/server/build"
	"sandbox.internal/server/config"
)

const usage = `usage: sandbox-server [--config FILE] [command]

Without a command the service runs until SIGINT or SIGTERM; a second one ends it at once. SIGHUP begins a new audit log
where the old one was renamed. Commands:
  config check   tell whether the configuration is valid
  config print   print the effective values, secrets masked
  config init    write a commented example to the file, unless it exists, with a random API key, for 127.0.0.1; --config - prints it
  audit verify [--file FILE]... [--expect HASH]
                 prove that the audit log (the configured one, or the files given, oldest first) is as it was written, and
                 print its last hash; with --expect also that it still has the line with a hash that was kept
  version        print the version

Exit codes: 0 after a graceful stop or success, 1 after a failure, 2 for a wrong command line, 78 when the configuration
that the service is started with cannot be used.

The configuration is read from --config, else from $SANDBOX_CONFIG_PATH, else from ~/.sandbox.toml.
`

const (
	exitFailure = 1
	exitUsage   = 2
	exitConfig  = 78 // EX_CONFIG of sysexits.h, which systemd knows by name
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("sandbox-server", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	file := flags.String("config", "", "")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(stdout, usage)
			return 0
		}
		fmt.Fprintf(stderr, "sandbox-server: %v\n\n%s", err, usage)
		return exitUsage
	}
	var err error
	switch command := flags.Args(); {
	case len(command) == 0:
		err = serve(*file, stderr)
	case len(command) == 1 && command[0] == "version":
		fmt.Fprintln(stdout, "sandbox-server", build.Version(), build.Commit())
	case len(command) >= 2 && command[0] == "audit" && command[1] == "verify":
		err = verify(*file, command[2:], stdout)
	case len(command) == 2 && command[0] == "config" && command[1] == "check":
		err = check(*file, stdout)
	case len(command) == 2 && command[0] == "config" && command[1] == "print":
		err = print(*file, stdout)
	case len(command) == 2 && command[0] == "config" && command[1] == "init":
		err = initialise(*file, stdout)
	default:
		fmt.Fprintf(stderr, "sandbox-server: unknown command %q\n\n%s", command, usage)
		return exitUsage
	}
	return exitCode(err, stderr)
}

// errConfig is a configuration that the service cannot be started with; errUsage is a command line that makes no sense.
type (
	errConfig struct{ error }
	errUsage  struct{ error }
)

func exitCode(err error, stderr io.Writer) int {
	var badConfig errConfig
	var badUsage errUsage
	switch {
	case err == nil:
		return 0
	case errors.As(err, &badUsage):
		fmt.Fprintf(stderr, "sandbox-server: %v\n\n%s", err, usage)
		return exitUsage
	}
	fmt.Fprintf(stderr, "%v\n", err)
	if errors.As(err, &badConfig) {
		return exitConfig
	}
	return exitFailure
}

func load(file string) (string, config.Config, error) {
	path, err := config.Path(file, os.Getenv)
	if err != nil {
		return "", config.Config{}, err
	}
	cfg, err := config.Load(path, os.Getenv)
	return path, cfg, err
}

func serve(file string, logs io.Writer) error {
	path, cfg, err := load(file)
	if err == nil {
		cfg.File, err = filepath.Abs(path)
	}
	if err != nil {
		return errConfig{err}
	}
	// Before anything else: the signal would end the process.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	logger := zerolog.New(logs).Level(level(cfg.Server.LogLevel)).With().Timestamp().Logger()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal has its usual effect
	service, err := app.New(ctx, cfg, api.Version{Version: build.Version(), Commit: build.Commit()}, logger)
	if err != nil {
		return err
	}
	done := make(chan struct{})
	var reopening sync.WaitGroup
	reopening.Go(func() {
		for {
			select {
			case <-hangups:
				service.Reopen()
			case <-done:
				return
			}
		}
	})
	err = service.Run(ctx)
	close(done)
	reopening.Wait()
	return err
}

func level(l config.LogLevel) zerolog.Level {
	switch l {
	case config.LogLevelDebug:
		return zerolog.DebugLevel
	case config.LogLevelWarning:
		return zerolog.WarnLevel
	case config.LogLevelError:
		return zerolog.ErrorLevel
	}
	return zerolog.InfoLevel
}

func check(file string, out io.Writer) error {
	path, cfg, err := load(file)
	if err != nil {
		return err
	}
	warnings := cfg.Warnings()
	if exposed := cfg.Exposed(); exposed != "" {
		warnings = append(warnings, exposed)
	}
	for _, warning := range warnings {
		fmt.Fprintf(out, "warning: %s\n", warning)
	}
	fmt.Fprintf(out, "%s: valid\n", path)
	return nil
}

func print(file string, out io.Writer) error {
	_, cfg, err := load(file)
	if err != nil {
		return err
	}
	return config.Print(out, cfg)
}

// initialise never overwrites a file: it may hold the only copy of a key. Only its owner can read what it writes.
func initialise(file string, out io.Writer) error {
	key := make([]byte, 32)
	rand.Read(key) // crypto/rand.Read never returns an error
	example := config.Init(hex.EncodeToString(key))
	if file == "-" {
		_, err := out.Write(example)
		return err
	}
	file, err := config.Path(file, os.Getenv)
	if err != nil {
		return err
	}
	created, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("config init: %w", err)
	}
	if _, err := created.Write(example); err != nil {
		return errors.Join(fmt.Errorf("config init: %w", err), created.Close(), os.Remove(file))
	}
	if err := created.Close(); err != nil {
		return fmt.Errorf("config init: %w", err)
	}
	fmt.Fprintf(out, "wrote %s, with a random API key (server.api_key)\n", file)
	return nil
}

// Command execd is the daemon inside each sandbox.
//
//	execd [flags]          serve the execution API
//	execd await [flags]    wait for a claim, below execd-init
//	execd sh -c command    the built-in shell, for images without one
//	execd install directory   put copies of execd and execd-init there, for a pod's init container
//
// In a sandbox execd-init starts it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"

	"sandbox.internal/execd/app"
	"sandbox.internal/execd/config"
	"sandbox.internal/execd/internal/probe"
	"sandbox.internal/execd/internal/shell"
	"sandbox.internal/internal/log"
	"sandbox.internal/internal/process"
	"sandbox.internal/internal/supervisor"
)

const (
	exitFailure = 1
	exitUsage   = 2
)

// What the daemon may use of the machine, see process.ReserveThreads.
const (
	maxProcessors = 4  // more would need more threads, and the daemon has no use for them
	spareThreads  = 13 // blocking calls at the same time, and the wait for news of commands
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	name := ""
	if len(args) > 0 {
		name = args[0]
	}
	switch name {
	case "install":
		return runInstall(args[1:])
	case "probe": // for the lifecycle service alone
		return probe.Main(args[1:], os.Stdout, os.Stderr)
	case "sh":
		return shell.Main(args[1:])
	case "await":
		return runAwait(args[1:])
	case "serve":
		args = args[1:]
	}
	return runServe(args)
}

func runServe(args []string) int {
	settings, code := parse(args)
	if code >= 0 {
		return code
	}
	started, err := supervisor.Started(supervisor.PrefixExecd)
	if err != nil {
		return fail(err)
	}
	if err := shield(); err != nil {
		return fail(err)
	}
	// Beside the rest of the start, which it would prolong by a tenth, and before the first
	// request.
	var reserved sync.WaitGroup
	reserved.Go(func() { process.ReserveThreads(maxProcessors, spareThreads) })
	output := logOutput(settings.LogLevel)
	defer output.Close()
	logger, closer, err := log.New(log.Options{
		Level: settings.LogLevel, File: settings.LogFile, Secrets: []string{settings.AccessToken, settings.JupyterToken},
	}, output)
	if err != nil {
		return fail(err)
	}
	defer closer.Close()
	daemon, err := app.New(settings, logger)
	if err != nil {
		return fail(err)
	}
	// A daemon started with SIGHUP ignored would pass that on to every command and terminal; a
	// handler is not inherited.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	reserved.Wait()
	// An answer means that the sandbox runs, and it does not without its entrypoint. Most of the
	// time that has started by now.
	if !started() {
		return exitFailure // execd-init reports why
	}
	if err := daemon.Run(ctx); err != nil {
		return fail(err)
	}
	return 0
}

// asideLog is where the log is when the standard output is that of a sandbox.
const asideLog = "/tmp/.execd.log"

// warning is the syslog severity that the service passes as --log-level.
const warning = 4

// logOutput returns where the log goes without a file of its own. In a sandbox of the service,
// which asks for warnings alone, the standard output is the sandbox's log, and that is the
// entrypoint's. Why the daemon does not start is there all the same, as no request can ask for it.
// Who starts execd-init by hand, with the level that it has by itself, sees the log.
func logOutput(level int) io.WriteCloser {
	if _, supervised := supervisor.Restarts(os.Getenv, supervisor.PrefixExecd); supervised && level <= warning {
		return log.Aside(asideLog, os.Stdout)
	}
	return struct {
		io.Writer
		io.Closer
	}{os.Stdout, io.NopCloser(nil)}
}

// shield keeps the sandbox's other processes out of this one, and reports that to execd-init, which
// waits for it.
func shield() error {
	report, err := supervisor.Ready(supervisor.PrefixExecd)
	if err != nil {
		return err
	}
	if err := process.Shield(); err != nil {
		return err
	}
	report()
	return nil
}

// runInstall copies the programs into a directory that containers of the same pod share.
func runInstall(args []string) int {
	if len(args) != 1 {
		fmt.Fprintln(os.Stderr, "usage: execd install FOLDER: the one argument is where to put execd and execd-init")
		return exitUsage
	}
	if err := install(args[0]); err != nil {
		return fail(fmt.Errorf("install: %w", err))
	}
	return 0
}

func install(dir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, name := range []string{"execd", "execd-init"} {
		if err := copyProgram(filepath.Join(filepath.Dir(self), name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

func copyProgram(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	// Under another name first: whoever finds the program finds all of it.
	draft := to + ".new"
	copied, err := os.OpenFile(draft, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	if _, err = io.Copy(copied, source); err == nil {
		err = copied.Chmod(0o755) // whatever the umask is
	}
	if err = errors.Join(err, copied.Close()); err != nil {
		return err
	}
	return os.Rename(draft, to)
}

// parse returns the settings, or the exit code when there is nothing more to do.
func parse(args []string) (config.Settings, int) {
	settings, err := config.Parse(args, os.Getenv, os.Stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(os.Stdout, "\nexecd-init [flags] -- entrypoint [arguments]  runs as process 1, with the daemon beside the entrypoint\n"+
			"execd install directory  puts copies of execd and execd-init there, for the init container of a pod\n")
		return settings, 0
	case err != nil:
		fmt.Fprintf(os.Stderr, "execd: %v\n", err)
		return settings, exitUsage
	}
	return settings, -1
}

func fail(err error) int {
	fmt.Fprintf(os.Stderr, "execd: %v\n", err)
	return exitFailure
}

// Command sandbox-controller makes the cluster's resources BatchSandbox and Pool what their specs say.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"sandbox.internal/runtime/kube/manager"
	"sandbox.internal/server/build"
)

const usage = `usage: sandbox-controller [flags]
       sandbox-controller version

Works for the resources BatchSandbox and Pool of a cluster until SIGINT or SIGTERM. What it knows is in the cluster, so it may end at any
moment, also by SIGKILL, and go on elsewhere.

Cluster:
  --kubeconfig FILE                    access to the cluster; default: the variable KUBECONFIG, the pod's service account or ~/.kube/config
  --namespace NAME                     look at this namespace alone (default: all of them)
  --leader-elect                       of several controllers one works, and another one when it dies (default false)
  --leader-elect-namespace NAME        where the lease is (default: --namespace, else the controller's own)

Listeners:
  --metrics-bind-address ADDRESS       for /metrics, 0 for none (default :8082)
  --health-probe-bind-address ADDRESS  for /healthz and /readyz, 0 for none (default :8083)

Log:
  --zap-log-level LEVEL                debug, info, error, or a number: the greater, the more is told (default info)
  --zap-encoder ENCODER                json, or console: for people (default console)
  --enable-file-log                    write the log into a file, too (default false)
  --log-file-path FILE                 that file (default /var/log/sandbox-controller/controller.log)
  --log-max-size N                     MB before a new file is begun (default 100)
  --log-max-backups N                  old files that are kept, 0 for all (default 10)
  --log-max-age N                      days that they are kept, 0 for ever (default 30)
  --log-compress                       compress old files with gzip (default true)

Exit codes: 0 after a stop, 1 after a failure (the loss of the lease is one), 2 for a wrong command line.
`

const (
	exitFailure = 1
	exitUsage   = 2
)

// settings is the command line.
type settings struct {
	kubeconfig string
	options    manager.Options
	log        logSettings
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	if len(args) == 1 && args[0] == "version" {
		fmt.Fprintln(stdout, "sandbox-controller", build.Version())
		return 0
	}
	s, err := parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "sandbox-controller: %v\n\n%s", err, usage)
		return exitUsage
	}
	if err := serve(s, stderr); err != nil {
		fmt.Fprintf(stderr, "sandbox-controller: %v\n", err)
		return exitFailure
	}
	return 0
}

// parse reads the command line. The lifecycle document, "Cluster resources", has the flags of the log and their defaults.
func parse(args []string) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("sandbox-controller", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&s.kubeconfig, "kubeconfig", "", "")
	flags.StringVar(&s.options.Namespace, "namespace", "", "")
	flags.BoolVar(&s.options.LeaderElection, "leader-elect", false, "")
	flags.StringVar(&s.options.LeaderElectionNamespace, "leader-elect-namespace", "", "")
	flags.StringVar(&s.options.MetricsAddress, "metrics-bind-address", ":8082", "")
	flags.StringVar(&s.options.HealthAddress, "health-probe-bind-address", ":8083", "")
	flags.StringVar(&s.log.level, "zap-log-level", "", "")
	flags.StringVar(&s.log.encoder, "zap-encoder", "", "")
	flags.BoolVar(&s.log.toFile, "enable-file-log", false, "")
	flags.StringVar(&s.log.path, "log-file-path", "/var/log/sandbox-controller/controller.log", "")
	flags.IntVar(&s.log.maxSize, "log-max-size", 100, "")
	flags.IntVar(&s.log.maxBackups, "log-max-backups", 10, "")
	flags.IntVar(&s.log.maxAge, "log-max-age", 30, "")
	flags.BoolVar(&s.log.compress, "log-compress", true, "")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if flags.NArg() > 0 {
		return s, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return s, s.log.check()
}

func serve(s settings, stderr io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal has its usual effect
	logger, closeLog, err := newLogger(s.log, stderr)
	if err != nil {
		return err
	}
	defer closeLog()
	manager.SetLogger(logger)
	if s.options.Config, err = manager.Load(s.kubeconfig); err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	s.options.Logger = logger
	controllers, err := manager.New(s.options)
	if err != nil {
		return err
	}
	logger.Info("sandbox-controller starts", "version", build.Version(), "cluster", s.options.Config.Host, "namespace", s.options.Namespace)
	return controllers.Run(ctx)
}

// Command sandbox-controller makes the cluster's resources BatchSandbox and Pool what their specs
// say.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sandbox.internal/internal/build"
	"sandbox.internal/runtime/kube/manager"
	"sandbox.internal/server/commandline"
)

const long = `Works for the resources BatchSandbox and Pool of a cluster until SIGINT or
SIGTERM. Its state is in the cluster, so it may end at any moment, also by
SIGKILL, and continue elsewhere.

Exit codes: 0 after a stop, 1 after a failure (the loss of the lease is one),
2 for a wrong command line.`

// settings is the command line.
type settings struct {
	kubeconfig string
	options    manager.Options
	log        logSettings
}

func main() { os.Exit(commandline.Run(newRoot(serve), os.Args[1:], os.Stdout, os.Stderr)) }

// newRoot returns the command line. serve is called with valid settings.
func newRoot(serve func(settings, io.Writer) error) *cobra.Command {
	var s settings
	root := &cobra.Command{
		Use:   "sandbox-controller",
		Short: "The controllers of a cluster's BatchSandboxes and Pools",
		Long:  long,
		Args:  commandline.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := s.log.check(); err != nil {
				return commandline.UsageError{Err: err}
			}
			if err := serve(s, c.ErrOrStderr()); err != nil {
				return fmt.Errorf("%s: %w", c.Name(), err)
			}
			return nil
		},
	}
	s.register(root)
	root.AddCommand(commandline.Version(build.Version()))
	return root
}

// register adds the flags. The lifecycle document, "Cluster resources", has those of the log and
// their defaults.
func (s *settings) register(root *cobra.Command) {
	commandline.AddFlags(root, "Cluster", func(flags *pflag.FlagSet) {
		flags.StringVar(&s.kubeconfig, "kubeconfig", "",
			"access to the cluster: a `FILE`; else that of the variable KUBECONFIG, the pod's "+
				"service account or ~/.kube/config")
		flags.StringVar(&s.options.Namespace, "namespace", "", "the only namespace: a `NAME`; else all")
		flags.BoolVar(&s.options.LeaderElection, "leader-elect", false,
			"of several controllers one works, and another one when it dies")
		flags.StringVar(&s.options.LeaderElectionNamespace, "leader-elect-namespace", "",
			"`NAME` of the lease's namespace; else that of --namespace, or the controller's own")
		flags.StringVar(&s.options.Rights, "rights", "",
			"`NAME` of the controller's Role and RoleBinding in --namespace, and with -last of one that lets it "+
				"keep them until no BatchSandbox or Pool is left")
	})
	commandline.AddFlags(root, "Listeners", func(flags *pflag.FlagSet) {
		flags.StringVar(&s.options.MetricsAddress, "metrics-bind-address", ":8082",
			"`ADDRESS` for /metrics, 0 for none")
		flags.StringVar(&s.options.HealthAddress, "health-probe-bind-address", ":8083",
			"`ADDRESS` for /healthz and /readyz, 0 for none")
	})
	commandline.AddFlags(root, "Log", func(flags *pflag.FlagSet) {
		flags.StringVar(&s.log.level, "zap-log-level", "",
			"`LEVEL`: debug, info, error, or a number, which logs the more the greater it is; else info")
		flags.StringVar(&s.log.encoder, "zap-encoder", "", "`FORMAT`: json or console; else console")
		flags.BoolVar(&s.log.toFile, "enable-file-log", false, "write the log to a file, too")
		flags.StringVar(&s.log.path, "log-file-path", "/var/log/sandbox-controller/controller.log",
			"that `FILE`")
		flags.IntVar(&s.log.maxSize, "log-max-size", 100, "`MB` after which a new file is begun")
		flags.IntVar(&s.log.maxBackups, "log-max-backups", 10, "`N` old files are kept, 0 for all")
		flags.IntVar(&s.log.maxAge, "log-max-age", 30, "`DAYS` that they are kept, 0 for ever")
		flags.BoolVar(&s.log.compress, "log-compress", true, "compress old files with gzip")
	})
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

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sandbox.internal/server/commandline"
	"sandbox.internal/server/ingress"
)

// flags is the command line.
type flags struct {
	settings ingress.Settings
	keyFile  string
	cluster  kubernetes
	logLevel string
}

func (f *flags) register(root *cobra.Command) {
	s := &f.settings
	commandline.AddFlags(root, "Routes", func(flags *pflag.FlagSet) {
		flags.StringVar((*string)(&s.Mode), "mode", "", "`MODE`: wildcard, uri or header; required")
		flags.StringVar(&s.Domain, "domain", s.Domain, "`DOMAIN` of the mode wildcard")
		flags.StringVar(&s.Service, "service", s.Service,
			"`URL` of the lifecycle service whose sandboxes are served")
		flags.StringVar(&f.keyFile, "service-key-file", "",
			"`FILE` with an administrator's key for it; else the variable SERVICE_API_KEY")
		flags.BoolVar(&f.cluster.on, "kubernetes", false,
			"serve the sandboxes of a cluster, from its API server")
		flags.StringVar(&f.cluster.kubeconfig, "kubeconfig-path", "",
			"access to the cluster: a `FILE`, absolute; else the service account of the ingress's pod")
		flags.StringVar(&f.cluster.namespace, "kubernetes-namespace", "",
			"`NAME` of the namespace of its sandboxes; else that of the kubeconfig's context, or of "+
				"the ingress's pod")
		flags.StringVar(&s.Routes, "routes", s.Routes, "`FILE` with static routes")
		flags.StringVar(&s.SigningKey, "signing-key", s.SigningKey,
			"`FILE` with the service's signing keys (server.signing_key); without it no signed "+
				"endpoint is accepted")
	})
	commandline.AddFlags(root, "Listeners", func(flags *pflag.FlagSet) {
		flags.StringVar(&s.Listen, "listen", s.Listen,
			"`ADDRESS` for clients, HTTP/1.1 and HTTP/2 without TLS")
		flags.StringVar(&s.Admin, "admin", s.Admin,
			"`ADDRESS` for /metrics and /healthz, empty for none")
	})
	commandline.AddFlags(root, "Limits", func(flags *pflag.FlagSet) {
		flags.IntVar(&s.Connections, "max-connections", s.Connections, "`N` connections of clients")
		flags.IntVar(&s.SandboxConnections, "max-sandbox-connections", s.SandboxConnections,
			"`N` requests and connections of one sandbox, then 429")
		flags.IntVar(&s.Sandboxes, "max-sandboxes", s.Sandboxes, "`N` sandboxes in the table of routes")
		flags.IntVar(&s.HeaderBytes, "max-header-bytes", s.HeaderBytes, "`N` bytes of a request's header")
		flags.DurationVar(&s.HeaderTimeout, "header-timeout", s.HeaderTimeout,
			"`TIME` that a header may take")
		flags.DurationVar(&s.IdleTimeout, "idle-timeout", s.IdleTimeout,
			"`TIME` that a connection may be without a request")
		flags.DurationVar(&s.Grace, "grace", s.Grace,
			"`TIME` that open requests and streams may last after the signal")
	})
	commandline.AddFlags(root, "Log", func(flags *pflag.FlagSet) {
		flags.StringVar(&f.logLevel, "log-level", "info", "`LEVEL`: debug, info, warn or error")
	})
}

// resolve reads the key and returns what the flags say. [ingress.Settings.Check] has the rules for
// most values. A cluster's routes are logged to logs.
func (f *flags) resolve(
	env func(string) string, logs io.Writer,
) (ingress.Settings, zerolog.Level, error) {
	s := f.settings
	s.Key = env("SERVICE_API_KEY")
	if f.keyFile != "" {
		key, err := os.ReadFile(f.keyFile)
		if err != nil {
			return s, 0, fmt.Errorf("--service-key-file: %w", err)
		}
		s.Key = strings.TrimSpace(string(key))
	}
	level, err := zerolog.ParseLevel(strings.ToLower(f.logLevel))
	if err != nil || f.logLevel == "" {
		return s, 0, fmt.Errorf("--log-level: must be debug, info, warn or error (got %q)",
			f.logLevel)
	}
	switch k := f.cluster; {
	case k.on:
		s.Source = k.source(zerolog.New(logs).Level(level).With().Timestamp().Logger())
	case k.kubeconfig != "" || k.namespace != "":
		return s, 0, errors.New(
			"--kubeconfig-path, --kubernetes-namespace: have no meaning without --kubernetes")
	}
	return s, level, s.Check()
}

// Command sandbox-ingress gives clients one address for every port of every sandbox.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/rs/zerolog"

	"sandbox.internal/server/build"
	"sandbox.internal/server/ingress"
)

const usage = `usage: sandbox-ingress --mode MODE (--service URL | --kubernetes | --routes FILE) [flags]
       sandbox-ingress version

Forwards requests to the ports of sandboxes until SIGINT or SIGTERM; then open requests and streams have --grace to end, and a
second signal ends them at once. SIGHUP reads --routes again.

Routes:
  --mode MODE           how a request names its sandbox and port:
                          wildcard  host <sandbox_id>-<port>.<domain>
                          uri       path /<sandbox_id>/<port>/...
                          header    header Service-Ingress-To: <sandbox_id>-<port>
  --domain DOMAIN       the domain of the mode wildcard
  --service URL         the lifecycle service whose sandboxes are served
  --service-key-file F  file with an administrator's key for it; default: the variable SERVICE_API_KEY
  --kubernetes          the sandboxes of a cluster instead of a service, from its API server
  --kubeconfig-path F   how the cluster is reached, absolute; default: as the service account of the ingress's pod
  --kubernetes-namespace N  where its sandboxes are; default: that of the kubeconfig's context, or of the ingress's pod
  --routes FILE         static routes instead of a service
  --signing-key FILE    the service's signing keys (server.signing_key); without it no signed endpoint is accepted

Listeners:
  --listen ADDRESS      for clients, HTTP/1.1 and HTTP/2 without TLS (default 0.0.0.0:8081)
  --admin ADDRESS       for /metrics and /healthz, empty for none (default 127.0.0.1:9081)

Limits:
  --max-connections N          connections of clients (default 10000)
  --max-sandbox-connections N  requests and connections of one sandbox, then 429 (default 2000)
  --max-sandboxes N            sandboxes in the table of routes (default 100000)
  --max-header-bytes N         the header of a request (default 65536)
  --header-timeout DURATION    how long a header may take (default 10s)
  --idle-timeout DURATION      how long a connection may be without a request (default 2m)
  --grace DURATION             how long open requests and streams may last after the signal (default 30s)

  --log-level LEVEL     debug, info, warn or error (default info)

Exit codes: 0 after a graceful stop, 1 after a failure, 2 for a wrong command line.
`

const (
	exitFailure = 1
	exitUsage   = 2
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	if len(args) == 1 && args[0] == "version" {
		fmt.Fprintln(stdout, "sandbox-ingress", build.Version())
		return 0
	}
	settings, level, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "sandbox-ingress: %v\n\n%s", err, usage)
		return exitUsage
	}
	lines := ingress.NewLogWriter(stderr)
	err = serve(settings, zerolog.New(lines).Level(level).With().Timestamp().Logger())
	_ = lines.Close() // there is no other place to report that the log cannot be written
	if err != nil {
		fmt.Fprintf(stderr, "sandbox-ingress: %v\n", err)
		return exitFailure
	}
	return 0
}

// parse reads the command line. [ingress.Settings.Check] has the rules for the values.
func parse(args []string, stderr io.Writer) (ingress.Settings, zerolog.Level, error) {
	s := ingress.DefaultSettings()
	flags := flag.NewFlagSet("sandbox-ingress", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	mode := flags.String("mode", "", "")
	keyFile := flags.String("service-key-file", "", "")
	logLevel := flags.String("log-level", "info", "")
	flags.StringVar(&s.Domain, "domain", s.Domain, "")
	flags.StringVar(&s.Service, "service", s.Service, "")
	var k kubernetes
	flags.BoolVar(&k.on, "kubernetes", false, "")
	flags.StringVar(&k.kubeconfig, "kubeconfig-path", "", "")
	flags.StringVar(&k.namespace, "kubernetes-namespace", "", "")
	flags.StringVar(&s.Routes, "routes", s.Routes, "")
	flags.StringVar(&s.SigningKey, "signing-key", s.SigningKey, "")
	flags.StringVar(&s.Listen, "listen", s.Listen, "")
	flags.StringVar(&s.Admin, "admin", s.Admin, "")
	flags.IntVar(&s.Connections, "max-connections", s.Connections, "")
	flags.IntVar(&s.SandboxConnections, "max-sandbox-connections", s.SandboxConnections, "")
	flags.IntVar(&s.Sandboxes, "max-sandboxes", s.Sandboxes, "")
	flags.IntVar(&s.HeaderBytes, "max-header-bytes", s.HeaderBytes, "")
	flags.DurationVar(&s.HeaderTimeout, "header-timeout", s.HeaderTimeout, "")
	flags.DurationVar(&s.IdleTimeout, "idle-timeout", s.IdleTimeout, "")
	flags.DurationVar(&s.Grace, "grace", s.Grace, "")
	if err := flags.Parse(args); err != nil {
		return s, 0, err
	}
	if flags.NArg() > 0 {
		return s, 0, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	s.Mode, s.Key = ingress.Mode(*mode), os.Getenv("SERVICE_API_KEY")
	if *keyFile != "" {
		key, err := os.ReadFile(*keyFile)
		if err != nil {
			return s, 0, fmt.Errorf("--service-key-file: %w", err)
		}
		s.Key = strings.TrimSpace(string(key))
	}
	level, err := zerolog.ParseLevel(strings.ToLower(*logLevel))
	if err != nil || *logLevel == "" {
		return s, 0, fmt.Errorf("--log-level: must be debug, info, warn or error (got %q)",
			*logLevel)
	}
	switch {
	case k.on:
		s.Source = k.source(zerolog.New(stderr).Level(level).With().Timestamp().Logger())
	case k.kubeconfig != "" || k.namespace != "":
		return s, 0, errors.New(
			"--kubeconfig-path, --kubernetes-namespace: have no meaning without --kubernetes")
	}
	return s, level, s.Check()
}

func serve(settings ingress.Settings, logger zerolog.Logger) error {
	// Before anything else: the signal would end the process.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal has its usual effect
	app, err := ingress.New(settings, logger)
	if err != nil {
		return err
	}
	done := make(chan struct{})
	var reloading sync.WaitGroup
	reloading.Go(func() {
		for {
			select {
			case <-hangups:
				if err := app.Reload(); err != nil {
					logger.Error().Err(err).Msg("the routes stay as they were")
				}
			case <-done:
				return
			}
		}
	})
	err = app.Run(ctx)
	close(done)
	reloading.Wait()
	return err
}

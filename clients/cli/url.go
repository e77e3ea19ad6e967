package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"sandbox.internal/clients/cli/internal/show"
	sandbox "sandbox.internal/clients/go"
)

func urlCommand(t *tool) *cobra.Command {
	var expires time.Duration
	command := &cobra.Command{
		Use:   "url [flags] SANDBOX PORT",
		Short: "Print a signed URL of a port, which needs no key",
		Long: "Print a signed URL of a port, which needs no key. Whoever has it can use that\n" +
			"port of that sandbox until it expires.",
		Example:           "  sandbox url web 8000 --expires 5m",
		Args:              arguments(2, 2, "a SANDBOX and a PORT"),
		ValidArgsFunction: t.completeNames(1),
		RunE: func(c *cobra.Command, args []string) error {
			port, err := parsePort(args[1], 1)
			if err != nil {
				return usageErrorf("port: must be a number from 1 to 65535, not %q", args[1])
			}
			box, err := t.find(c.Context(), args[0])
			if err != nil {
				return err
			}
			if !c.Flags().Changed("expires") {
				// A URL cannot outlive its sandbox. A second is for the request.
				expires = min(expires, time.Until(box.Info().ExpiresAt)-time.Second)
			}
			endpoint, err := box.SignedEndpoint(c.Context(), port, expires)
			if err != nil {
				return err
			}
			if t.Printer.Format == show.FormatTable || t.Printer.Quiet {
				_, err := fmt.Fprintln(t.Stdout, t.Clean(endpoint.URL))
				return err
			}
			return show.Item(t.Printer, endpointView, endpoint)
		},
	}
	command.Flags().DurationVar(&expires, "expires", time.Hour,
		"for how long, at most 24h and not longer than the sandbox lives")
	t.registerOutput(command, "the URL")
	return command
}

var endpointView = show.View[sandbox.Endpoint]{
	ID: func(e sandbox.Endpoint) string { return e.URL },
	Columns: []show.Column[sandbox.Endpoint]{
		{Title: "URL", Value: func(e sandbox.Endpoint) string { return e.URL }},
		{Title: "EXPIRES", Value: func(e sandbox.Endpoint) string {
			if e.ExpiresAt == nil {
				return ""
			}
			return e.ExpiresAt.Local().Format(time.RFC3339)
		}},
	},
}

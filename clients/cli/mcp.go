package cli

import (
	"io"

	"github.com/spf13/cobra"

	"sandbox.internal/clients/mcp"
)

func mcpCommand(t *tool) *cobra.Command {
	command := &cobra.Command{
		Use:   "mcp [flags]",
		Short: "Serve one agent over the Model Context Protocol",
		Long: "Serve one agent over the Model Context Protocol, on the standard input and\n" +
			"output. What it does, it does with your key. `sandbox mcp config` prints what to\n" +
			"paste into the configuration of an agent.",
		Example: "  sandbox mcp </dev/null",
		Args:    arguments(0, 0, ""),
		RunE: func(c *cobra.Command, _ []string) error {
			connection, err := t.connect()
			if err != nil {
				return err
			}
			in, ok := t.Stdin.(io.ReadCloser)
			if !ok {
				in = io.NopCloser(t.Stdin)
			}
			return mcp.ServeStdio(c.Context(), in, unclosed{t.Stdout}, connection.client,
				ownBuild().Version)
		},
	}
	command.AddCommand(mcpConfigCommand(t))
	return command
}

// unclosed leaves it to the process to close an output.
type unclosed struct{ io.Writer }

// Close implements io.Closer.
func (unclosed) Close() error { return nil }

package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"sandbox.internal/clients/cli/internal/show"
	sandbox "sandbox.internal/clients/go"
)

const (
	defaultContext = "default"
	// maxKey bounds a key that is read from the standard input, in bytes.
	maxKey = 4096
)

func loginCommand(t *tool) *cobra.Command {
	var name string
	command := &cobra.Command{
		Use:   "login [flags] [URL]",
		Short: "Save the URL and the key of a service",
		Long: "Save the URL and the key of a service as a context, and make it the current one.\n\n" +
			"The key is asked for on a terminal and read from the standard input elsewhere.\n" +
			"It is tried before it is saved, in a file that only you can read. $" + sandbox.URLVariable + "\n" +
			"and $" + sandbox.KeyVariable + " win over what is saved.",
		Example: "  echo \"$SERVICE_API_KEY\" | sandbox login \"$SANDBOX_URL\" --name work",
		Args:    arguments(0, 1, "a URL"),
		RunE: func(c *cobra.Command, args []string) error {
			if c.Flags().Changed("context") {
				return usageErrorf("context: use --name for the name of the new context")
			}
			to := service{URL: cmp.Or(append(args, t.target.url, t.Env(sandbox.URLVariable),
				sandbox.DefaultURL)...)}
			return t.login(c.Context(), name, to)
		},
	}
	command.Flags().StringVar(&name, "name", defaultContext, "the `NAME` of the context")
	return command
}

func (t *tool) login(ctx context.Context, name string, to service) error {
	to.URL = strings.TrimRight(to.URL, "/")
	if err := checkURL(to.URL); err != nil {
		return err
	}
	saved, err := loadContexts(t.Env)
	if err != nil {
		return err
	}
	to.APIKey = t.target.apiKey
	if to.APIKey == "" {
		if to.APIKey, err = t.readKey(ctx, to.URL); err != nil {
			return err
		}
	}
	connection, err := newConnection(to)
	if err != nil {
		return err
	}
	defer connection.close()
	if _, err := connection.client.Version(ctx); err != nil { // it demands the key, too
		return fmt.Errorf("cannot check the key, login not saved: %w", err)
	}
	saved.Contexts[name], saved.Current = to, name
	if err := saved.save(); err != nil {
		return err
	}
	without := ""
	if to.APIKey == "" {
		without = ", without a key"
	}
	_, err = fmt.Fprintf(t.Stdout, "%s is the current context: %s%s\n", t.Clean(name), t.Clean(to.URL), without)
	return err
}

// readKey reads a key, without an echo from a terminal. It returns when ctx ends, whatever is read.
func (t *tool) readKey(ctx context.Context, url string) (string, error) {
	read := t.pipedKey
	if isTerminal(t.Stdin) {
		// The mode is changed here and not while it is read, which goes on after an interrupt.
		restore, err := t.rawMode()
		if err != nil {
			return "", err
		}
		defer func() {
			restore()
			_, _ = fmt.Fprintln(t.Stderr)
		}()
		_, _ = fmt.Fprintf(t.Stderr, "API key of %s (empty for none): ", t.Clean(url))
		read = t.typedKey
	}
	type result struct {
		key string
		err error
	}
	done := make(chan result, 1)
	go func() {
		key, err := read()
		done <- result{strings.TrimSpace(key), err}
	}()
	select {
	case got := <-done:
		if errors.Is(got.err, errInterrupted) {
			t.signals.deliver()
		}
		return got.key, got.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// typedKey reads a key from a terminal in raw mode.
func (t *tool) typedKey() (string, error) {
	screen := term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{keys{t.Stdin}, io.Discard}, "")
	return screen.ReadPassword("")
}

// keys are those typed on a terminal in raw mode, where Ctrl-C is a byte like others.
type keys struct{ io.Reader }

// Read implements io.Reader.
func (k keys) Read(p []byte) (int, error) {
	n, err := k.Reader.Read(p)
	if bytes.IndexByte(p[:n], '\x03') >= 0 {
		return 0, errInterrupted
	}
	return n, err
}

func (t *tool) pipedKey() (string, error) {
	key, err := bufio.NewReader(io.LimitReader(t.Stdin, maxKey)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("read the key: %w", err)
	}
	if key == "" { // the input ended, as /dev/null does; an empty line is the answer that there is none
		return "", errors.New("the standard input has no key, and nothing is saved: " +
			"pipe the key in, or an empty line for a service without keys")
	}
	return key, nil
}

// contextRow is one line of `context ls`. It has no key.
type contextRow struct {
	Name    string `json:"name"`
	URL     string `json:"url"`
	Current bool   `json:"current"`
}

var contextView = show.View[contextRow]{
	ID: func(c contextRow) string { return c.Name },
	Columns: []show.Column[contextRow]{
		{Title: "NAME", Value: func(c contextRow) string { return c.Name }, Least: 8},
		{Title: "CURRENT", Value: func(c contextRow) string {
			if c.Current {
				return "*"
			}
			return ""
		}},
		{Title: "URL", Value: func(c contextRow) string { return c.URL }, Least: 16},
	},
}

func contextCommand(t *tool) *cobra.Command {
	command := &cobra.Command{
		Use:     "context",
		Short:   "List, choose and forget services that login has saved",
		Example: "  sandbox context ls",
		RunE:    groupOf,
	}
	list := &cobra.Command{
		Use:     "ls [flags]",
		Short:   "List the contexts",
		Example: "  sandbox context ls -o wide",
		Args:    arguments(0, 0, ""),
		RunE:    func(*cobra.Command, []string) error { return t.listContexts() },
	}
	t.registerOutput(list, "names")
	use := &cobra.Command{
		Use:               "use NAME",
		Short:             "Make a context the current one",
		Example:           "  sandbox context use work",
		Args:              arguments(1, 1, "the name of a context"),
		ValidArgsFunction: t.completeContexts,
		RunE: func(_ *cobra.Command, args []string) error {
			return t.changeContexts(args[0], func(c *contexts) { c.Current = args[0] })
		},
	}
	remove := &cobra.Command{
		Use:               "rm NAME",
		Short:             "Forget a context and its key",
		Example:           "  sandbox context rm work",
		Args:              arguments(1, 1, "the name of a context"),
		ValidArgsFunction: t.completeContexts,
		RunE: func(_ *cobra.Command, args []string) error {
			return t.changeContexts(args[0], func(c *contexts) {
				delete(c.Contexts, args[0])
				if c.Current == args[0] {
					c.Current = ""
				}
			})
		},
	}
	command.AddCommand(list, use, remove)
	return command
}

func (t *tool) listContexts() error {
	saved, err := loadContexts(t.Env)
	if err != nil {
		return err
	}
	var rows []contextRow
	for _, name := range saved.names() {
		rows = append(rows, contextRow{name, saved.Contexts[name].URL, name == saved.Current})
	}
	return show.All(t.Printer, contextView, rows)
}

func (t *tool) changeContexts(name string, change func(*contexts)) error {
	saved, err := loadContexts(t.Env)
	if err != nil {
		return err
	}
	if _, err := saved.get(name); err != nil {
		return err
	}
	change(saved)
	return saved.save()
}

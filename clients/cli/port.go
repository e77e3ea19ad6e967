package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sandbox.internal/clients/cli/forward"
	sandbox "sandbox.internal/clients/go"
)

const localhost = "127.0.0.1"

// forwardRule is a local port and the one of the sandbox that it leads to. Local 0 is any free
// port.
type forwardRule struct{ local, remote int }

// parseForwards reads [LOCAL:]PORT.
func parseForwards(list []string) ([]forwardRule, error) {
	var rules []forwardRule
	for _, text := range list {
		local, remote, both := strings.Cut(text, ":")
		if !both {
			remote = local
		}
		rule := forwardRule{}
		var err error
		if rule.local, err = parsePort(local, 0); err == nil {
			rule.remote, err = parsePort(remote, 1)
		}
		if err != nil {
			return nil, usageErrorf("port: must be PORT or LOCAL:PORT, not %q", text)
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

func parsePort(text string, least int) (int, error) {
	port, err := strconv.Atoi(text)
	if err != nil || port < least || port > 65535 {
		return 0, fmt.Errorf("%q is no port", text)
	}
	return port, nil
}

func portCommand(t *tool) *cobra.Command {
	address := localhost
	command := &cobra.Command{
		Use:     "port [flags] SANDBOX [LOCAL:]PORT...",
		Aliases: []string{"port-forward"},
		Short:   "Forward local ports to ports of a sandbox",
		Long: "Forward local ports to ports of a sandbox, for HTTP and WebSockets, until an\n" +
			"interrupt. LOCAL 0 is any free port.",
		Example:           "  sandbox port web 18000:8000\n  sandbox port web 0:8000",
		Args:              arguments(2, -1, "a SANDBOX and a PORT"),
		ValidArgsFunction: t.completeNames(1),
		RunE: func(c *cobra.Command, args []string) error {
			rules, err := parseForwards(args[1:])
			if err != nil {
				return err
			}
			box, err := t.find(c.Context(), args[0])
			if err != nil {
				return err
			}
			forwards, err := t.startForwards(box, address, rules)
			if err != nil {
				return err
			}
			for i, local := range forwards.addresses {
				_, err := fmt.Fprintf(t.Stdout, "http://%s -> %s port %d\n", local,
					t.Clean(label(box.Info())), rules[i].remote)
				if err != nil {
					return errors.Join(err, forwards.stop())
				}
			}
			return errors.Join(forwards.wait(c.Context()), forwards.stop())
		},
	}
	command.Flags().StringVar(&address, "address", address, "the local `ADDRESS` to listen on")
	return command
}

// forwards are local ports that lead to a sandbox.
type forwards struct {
	addresses []string
	servers   []*http.Server
	ended     chan error
}

// startForwards listens on all local ports, or on none.
func (t *tool) startForwards(box *sandbox.Sandbox, address string,
	rules []forwardRule) (*forwards, error) {
	c, err := t.connect()
	if err != nil {
		return nil, err
	}
	f := &forwards{ended: make(chan error, len(rules))}
	for _, rule := range rules {
		listener, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(rule.local)))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("port %d: %w", rule.local, err), f.stop())
		}
		server, err := forward.New(forward.Options{
			Target: box.ProxyURL(rule.remote),
			Header: c.header,
			OnError: func(err error) {
				t.warn("port %d: %v", rule.remote, err)
			},
		})
		if err != nil {
			return nil, errors.Join(err, listener.Close(), f.stop())
		}
		f.addresses = append(f.addresses, listener.Addr().String())
		f.servers = append(f.servers, server)
		go func() { f.ended <- forward.Serve(server, listener) }()
	}
	return f, nil
}

// wait returns when ctx ends or a local port fails.
func (f *forwards) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case err := <-f.ended:
		f.ended <- err // for stop
		return err
	}
}

// stopGrace is how long requests may go on when forwarding ends.
const stopGrace = time.Second

// stop ends all servers and waits for them.
func (f *forwards) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	var failures []error
	for _, server := range f.servers {
		if err := server.Shutdown(ctx); err != nil {
			failures = append(failures, server.Close())
		}
	}
	for range f.servers {
		failures = append(failures, <-f.ended)
	}
	return errors.Join(failures...)
}

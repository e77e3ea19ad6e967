package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"sandbox.internal/clients/cli/sshserver"
	sandbox "sandbox.internal/clients/go"
)

const (
	// sshProxy is the command that a client of SSH runs in place of a connection.
	sshProxy = "ssh-proxy"
	// sshDomain ends the names of sandboxes as hosts of SSH.
	sshDomain = ".sandbox"
	// sshLeave is how long ssh may take to leave the terminal as it was.
	sshLeave = 5 * time.Second
)

// sshOptions have a client of SSH take any host key. Its connection is a pipe to this program, so
// no other host can have answered; the service is checked by TLS, as for every command.
var sshOptions = []string{"StrictHostKeyChecking no", "UserKnownHostsFile /dev/null", "LogLevel ERROR"}

func sshCommand(t *tool) *cobra.Command {
	p := program{}
	command := &cobra.Command{
		Use:   "ssh [flags] SANDBOX [--] [ARGUMENT...]",
		Short: "Connect to a sandbox with ssh",
		Long: "Connect to a sandbox with the ssh of this machine, and exit with its exit code.\n" +
			"The sandbox needs no SSH server and no open port. The ARGUMENTs are those of ssh\n" +
			"behind the host: a command, or, to forward to ports of the sandbox, options such\n" +
			"as -N -L 5432:localhost:5432. For scp and sftp see ssh-config.",
		Example: "  sandbox ssh box\n" +
			"  sandbox ssh box -- uname -a",
		Args:              arguments(1, -1, "a SANDBOX"),
		Annotations:       map[string]string{runsPrograms: "yes"},
		ValidArgsFunction: t.completeNames(1),
		RunE: func(c *cobra.Command, args []string) error {
			if _, _, err := parseUser(p.user); err != nil {
				return err
			}
			box, err := t.find(c.Context(), args[0])
			if err != nil {
				return err
			}
			return t.runSSH(c.Context(), box, p.user, afterDash(args, 1))
		},
	}
	registerSSHUser(command, &p)
	command.Flags().SetInterspersed(false)
	return command
}

func registerSSHUser(command *cobra.Command, p *program) {
	command.Flags().StringVarP(&p.user, "user", "u", "",
		"`USER[:GROUP]` to run commands and terminals as, names that the sandbox has or numbers")
}

// runSSH runs the ssh of this machine, with this program in place of a connection.
func (t *tool) runSSH(ctx context.Context, box *sandbox.Sandbox, user string, args []string) error {
	ssh, err := exec.LookPath("ssh")
	if err != nil {
		return errors.New("this machine has no ssh: install an OpenSSH client, or use sandbox shell")
	}
	var flags []string
	if user != "" {
		flags = []string{"--user=" + user}
	}
	proxy, err := proxyCommand(flags...)
	if err != nil {
		return err
	}
	to, err := t.target.resolve(t.Env)
	if err != nil {
		return err
	}
	words := []string{"-o", "ProxyCommand " + proxy}
	for _, option := range sshOptions {
		words = append(words, "-o", option)
	}
	command := exec.CommandContext(ctx, ssh, append(append(words, box.ID()+sshDomain), args...)...)
	command.Stdin, command.Stdout, command.Stderr = t.Stdin, t.Stdout, t.Stderr
	// The key is in the environment, which ps does not show.
	command.Env = append(os.Environ(), contextVar+"=", sandbox.URLVariable+"="+to.URL, sandbox.KeyVariable+"="+to.APIKey)
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = sshLeave
	err = command.Run()
	var ended *exec.ExitError
	if errors.As(err, &ended) && ended.Exited() {
		return exitError{ended.ExitCode()}
	}
	return err
}

// proxyCommand returns a ProxyCommand: a command line for a shell, in which the client of SSH
// replaces %n with the host as it was typed.
func proxyCommand(flags ...string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	words := quote(append([]string{self, sshProxy}, flags...))
	return strings.ReplaceAll(words, "%", "%%") + " -- '%n'", nil
}

func sshConfigCommand(t *tool) *cobra.Command {
	return &cobra.Command{
		Use:   "ssh-config",
		Short: "Print a configuration with which ssh, scp and sftp reach sandboxes",
		Long: "Print a configuration with which ssh, scp and sftp reach every sandbox, as the\n" +
			"host NAME" + sshDomain + " or ID" + sshDomain + ". It has no key: the service is that of --url or\n" +
			"--context, or else that which the environment or login names when ssh connects.",
		Example: "  sandbox ssh-config >ssh.config\n" +
			"  scp -F ssh.config notes.txt box" + sshDomain + ":/tmp\n" +
			"  ssh -F ssh.config box" + sshDomain + " cat /tmp/notes.txt",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if t.target.apiKey != "" {
				return usageErrorf("api-key: is not written into the configuration: save it with login")
			}
			var flags []string
			if t.target.url != "" {
				flags = append(flags, "--url="+t.target.url)
			}
			if t.target.context != "" {
				flags = append(flags, "--context="+t.target.context)
			}
			proxy, err := proxyCommand(flags...)
			if err != nil {
				return err
			}
			// Clients before OpenSSH 9.6 pass any host to the shell of a ProxyCommand, also one of
			// the URL of a Git submodule. A quote would end the quotes around %n.
			_, err = fmt.Fprintf(t.Stdout, "Host *%s \"!*'*\"\n  ProxyCommand %s\n  %s\n", sshDomain, proxy,
				strings.Join(sshOptions, "\n  "))
			return err
		},
	}
}

func sshProxyCommand(t *tool) *cobra.Command {
	p := program{}
	command := &cobra.Command{
		Use:    sshProxy + " [flags] SANDBOX",
		Short:  "Serve SSH for a sandbox on the standard input and output",
		Hidden: true, // people use ssh and ssh-config
		Args:   arguments(1, 1, "a SANDBOX"),
		RunE: func(c *cobra.Command, args []string) error {
			box, err := t.find(c.Context(), strings.TrimSuffix(args[0], sshDomain))
			if err != nil {
				return err
			}
			uid, gid, err := p.ids(c.Context(), box)
			if err != nil {
				return err
			}
			service, err := t.connect()
			if err != nil {
				return err
			}
			names := []string{box.ID(), box.ID() + sshDomain}
			if name := nameOf(box.Info()); name != "" {
				names = append(names, name, name+sshDomain)
			}
			return t.serveSSH(c.Context(), sshserver.Options{
				Sandbox: box, UID: uid, GID: gid, Warn: t.warn, Names: names, HTTP: service.http, Header: service.header,
			})
		},
	}
	registerSSHUser(command, &p)
	return command
}

// serveSSH serves one connection, whose other end is our standard input and output.
func (t *tool) serveSSH(ctx context.Context, options sshserver.Options) error {
	served, outside := net.Pipe()
	go func() {
		_, _ = io.Copy(outside, t.Stdin) // a read of it cannot be called off
		_ = outside.Close()
	}()
	printed := make(chan struct{})
	go func() {
		defer close(printed)
		_, _ = io.Copy(t.Stdout, outside)
		_ = outside.Close()
	}()
	err := sshserver.Serve(ctx, served, options)
	_ = served.Close()
	<-printed
	return err
}

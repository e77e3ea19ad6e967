package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sandbox.internal/clients/cli/internal/show"
	sandbox "sandbox.internal/clients/go"
)

func keyCommand(t *tool) *cobra.Command {
	command := &cobra.Command{
		Use:   "key",
		Short: "See and change the API keys of the service",
		Long: "See and change the API keys of the service. It needs a key with the role admin.\n" +
			"Keys of the service's configuration are shown, and changed there alone; a\n" +
			"service on a cluster has no others.",
		Example: "  sandbox key ls",
		RunE:    groupOf,
	}
	command.AddCommand(keyCreateCommand(t), keyListCommand(t), keyShowCommand(t), keyRotateCommand(t), keyRemoveCommand(t))
	return command
}

// keyFlags describe a key to make.
type keyFlags struct {
	role, expires             string
	takeOver                  bool
	sandboxes, rate, burst    int
	cpu, memory               string
	defaultCPU, defaultMemory string
	totalCPU, totalMemory     string
	timeout                   time.Duration
}

func (f *keyFlags) register(command *cobra.Command) {
	flags := command.Flags()
	flags.StringVar(&f.role, "role", string(sandbox.RoleUser), "what it may do: `ROLE` is admin, user or viewer")
	flags.StringVar(&f.expires, "expires", "", "`WHEN` it ceases to be valid: 30d, 12h, or a time as 2027-01-02T15:04:05Z")
	flags.IntVar(&f.sandboxes, "max-sandboxes", 0, "how many sandboxes it may have that have not ended; 0 is no limit")
	flags.StringVar(&f.cpu, "max-cpu", "", "the most `CPU` of one sandbox, as 2 or 500m")
	flags.StringVar(&f.memory, "max-memory", "", "the most `MEMORY` of one sandbox, as 1Gi")
	flags.StringVar(&f.defaultCPU, "default-cpu", "", "the `CPU` of a sandbox that asks for none")
	flags.StringVar(&f.defaultMemory, "default-memory", "", "the `MEMORY` of a sandbox that asks for none")
	flags.StringVar(&f.totalCPU, "total-cpu", "", "the most `CPU` of all its sandboxes together")
	flags.StringVar(&f.totalMemory, "total-memory", "", "the most `MEMORY` of all its sandboxes together")
	flags.DurationVar(&f.timeout, "max-timeout", 0, "the longest timeout of a sandbox, from 1m to 24h")
	flags.IntVar(&f.rate, "rate", 0, "how many requests a second it may send on average; 0 is no limit")
	flags.IntVar(&f.burst, "burst", 0, "how many requests may come at once; 0 is as many as --rate")
	flags.BoolVar(&f.takeOver, "take-over", false, "allow a name that a key had before, with the sandboxes of that name")
	_ = command.RegisterFlagCompletionFunc("role",
		cobra.FixedCompletions([]string{"admin", "user", "viewer"}, cobra.ShellCompDirectiveNoFileComp))
}

func (f *keyFlags) request(command *cobra.Command, name string) (request sandbox.CreateKeyRequest, err error) {
	roles := []sandbox.KeyRole{sandbox.RoleAdmin, sandbox.RoleUser, sandbox.RoleViewer}
	if !slices.Contains(roles, sandbox.KeyRole(f.role)) {
		return request, usageErrorf("role: must be admin, user or viewer, not %q", f.role)
	}
	expiresAt, err := expiryOf(f.expires, time.Now())
	if err != nil {
		return request, err
	}
	request = sandbox.CreateKeyRequest{
		Name: name, Role: sandbox.KeyRole(f.role), ExpiresAt: pointer(expiresAt), TakeOver: pointer(f.takeOver),
	}
	limits := sandbox.KeyLimits{
		MaxSandboxes: pointer(f.sandboxes), MaxTimeout: pointer(int(f.timeout / time.Second)), MaxCPU: pointer(f.cpu), MaxMemory: pointer(f.memory),
		DefaultCPU: pointer(f.defaultCPU), DefaultMemory: pointer(f.defaultMemory), TotalCPU: pointer(f.totalCPU), TotalMemory: pointer(f.totalMemory),
	}
	if limits != (sandbox.KeyLimits{}) {
		request.Limits = &limits
	}
	if command.Flags().Changed("rate") || command.Flags().Changed("burst") {
		request.RateLimit = &sandbox.KeyRateLimit{RequestsPerSecond: f.rate, Burst: pointer(f.burst)}
	}
	return request, nil
}

// pointer returns a pointer to a value, nil for the zero value.
func pointer[T comparable](value T) *T {
	var zero T
	if value == zero {
		return nil
	}
	return &value
}

// maxExpiry bounds an expiry that is given in days: time.Duration ends with some 292 years.
const maxExpiry = 100 * 365

// expiryOf reads --expires.
func expiryOf(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at, nil
	}
	var life time.Duration
	if number, ok := strings.CutSuffix(text, "d"); ok {
		if days, err := strconv.Atoi(number); err == nil && days <= maxExpiry {
			life = time.Duration(days) * 24 * time.Hour
		}
	} else if d, err := time.ParseDuration(text); err == nil {
		life = d
	}
	if life <= 0 {
		return time.Time{}, usageErrorf("expires: must be as 30d, 12h or 2027-01-02T15:04:05Z, not %q", text)
	}
	return now.Add(life).UTC().Truncate(time.Second), nil
}

func keyCreateCommand(t *tool) *cobra.Command {
	var flags keyFlags
	command := &cobra.Command{
		Use:   "create [flags] NAME",
		Short: "Make a key, and print its secret",
		Long: "Make a key, and print its secret on the standard output, once: the service keeps\n" +
			"a digest only. What the key may not do otherwise is as the service's\n" +
			"configuration has it.",
		Example: "  sandbox key create ci --expires 30d --max-sandboxes 20\n" +
			"  sandbox key create scraper --role viewer > scraper.key",
		Args: arguments(1, 1, "a NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			request, err := flags.request(c, args[0])
			if err != nil {
				return err
			}
			keys, err := t.keys()
			if err != nil {
				return err
			}
			issued, err := keys.Create(c.Context(), request)
			if err != nil {
				return err
			}
			return t.showIssued(issued)
		},
	}
	flags.register(command)
	t.registerOutput(command, "")
	return command
}

// showIssued prints a secret. What is for people does not go where the secret goes.
func (t *tool) showIssued(issued sandbox.IssuedKey) error {
	if t.Printer.Structured() {
		return t.ShowValue(issued)
	}
	if _, err := fmt.Fprintln(t.Stdout, t.Clean(issued.Secret)); err != nil {
		return err
	}
	expires := "does not expire"
	if at := issued.Key.ExpiresAt; at != nil {
		expires = "expires at " + at.Local().Format(time.RFC3339)
	}
	_, err := fmt.Fprintf(t.Stderr, "key %q has the role %s and %s; keep the secret, it is not shown again\n",
		t.Clean(issued.Key.Name), issued.Key.Role, expires)
	return err
}

func keyListCommand(t *tool) *cobra.Command {
	command := &cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"list"},
		Short:   "List keys",
		Example: "  sandbox key ls\n" +
			"  sandbox key ls -o wide",
		Args: arguments(0, 0, ""),
		RunE: func(c *cobra.Command, _ []string) error {
			keys, err := t.keys()
			if err != nil {
				return err
			}
			var list []sandbox.Key
			for key, err := range keys.List(c.Context()) {
				if err != nil {
					return err
				}
				list = append(list, key)
			}
			return show.All(t.Printer, keyView(time.Now()), list)
		},
	}
	t.registerOutput(command, "names")
	return command
}

func keyShowCommand(t *tool) *cobra.Command {
	command := &cobra.Command{
		Use:     "show [flags] NAME",
		Short:   "Show a key, without its secret",
		Example: "  sandbox key show ci -o yaml",
		Args:    arguments(1, 1, "a NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			keys, err := t.keys()
			if err != nil {
				return err
			}
			key, err := keys.Get(c.Context(), args[0])
			if err != nil {
				return err
			}
			return show.Item(t.Printer, keyView(time.Now()), key)
		},
	}
	t.registerOutput(command, "")
	return command
}

func keyRotateCommand(t *tool) *cobra.Command {
	var grace time.Duration
	expires := ""
	command := &cobra.Command{
		Use:   "rotate [flags] NAME",
		Short: "Replace the secret of a key, and print the new one",
		Long: "Replace the secret of a key, and print the new one on the standard output. The\n" +
			"one before is refused at once, unless --grace keeps it valid for a while.",
		Example: "  sandbox key rotate ci --grace 1h",
		Args:    arguments(1, 1, "a NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			if grace < 0 || grace%time.Second != 0 {
				return usageErrorf("grace: must be whole seconds, not %s", grace)
			}
			expiresAt, err := expiryOf(expires, time.Now())
			if err != nil {
				return err
			}
			keys, err := t.keys()
			if err != nil {
				return err
			}
			issued, err := keys.Rotate(c.Context(), args[0], &sandbox.RotateOptions{Grace: grace, ExpiresAt: expiresAt})
			if err != nil {
				return err
			}
			return t.showIssued(issued)
		},
	}
	command.Flags().DurationVar(&grace, "grace", 0, "how long the secret before stays valid, at most 168h")
	command.Flags().StringVar(&expires, "expires", "", "`WHEN` the key ceases to be valid: 30d, 12h, or a time as 2027-01-02T15:04:05Z")
	t.registerOutput(command, "")
	return command
}

func keyRemoveCommand(t *tool) *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME...",
		Short: "Remove keys",
		Long: "Remove keys. They are refused from then on; their sandboxes stay until they\n" +
			"expire.",
		Example: "  sandbox key rm ci",
		Args:    arguments(1, -1, "a NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			return t.removeKeys(c.Context(), args)
		},
	}
}

func (t *tool) removeKeys(ctx context.Context, names []string) error {
	keys, err := t.keys()
	if err != nil {
		return err
	}
	var failed []error
	for _, name := range names {
		err := keys.Delete(ctx, name)
		if err == nil {
			_, err = io.WriteString(t.Stdout, t.Clean(name)+"\n")
		}
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

func (t *tool) keys() (sandbox.Keys, error) {
	c, err := t.connect()
	if err != nil {
		return sandbox.Keys{}, err
	}
	return c.client.Keys, nil
}

func keyView(now time.Time) show.View[sandbox.Key] {
	ago := func(at *time.Time) string {
		if at == nil {
			return "-"
		}
		return roughly(now.Sub(*at))
	}
	limit := func(of func(sandbox.KeyLimits) string) func(sandbox.Key) string {
		return func(k sandbox.Key) string { return cmp.Or(of(optional(k.Limits)), "-") }
	}
	return show.View[sandbox.Key]{
		ID: func(k sandbox.Key) string { return k.Name },
		Columns: []show.Column[sandbox.Key]{
			{Title: "NAME", Value: func(k sandbox.Key) string { return k.Name }, Least: 12},
			{Title: "ROLE", Value: func(k sandbox.Key) string { return string(k.Role) }},
			{Title: "SOURCE", Value: func(k sandbox.Key) string { return string(k.Source) }},
			{Title: "EXPIRES", Value: func(k sandbox.Key) string { return expiryIn(k, now) }},
			{Title: "USED", Value: func(k sandbox.Key) string { return ago(k.LastUsedAt) }},
			{Title: "AGE", Value: func(k sandbox.Key) string { return ago(k.CreatedAt) }, Wide: true},
			{Title: "SANDBOXES", Wide: true, Value: limit(func(l sandbox.KeyLimits) string { return number(l.MaxSandboxes) })},
			{Title: "CPU", Wide: true, Value: limit(func(l sandbox.KeyLimits) string { return optional(l.MaxCPU) })},
			{Title: "MEMORY", Wide: true, Value: limit(func(l sandbox.KeyLimits) string { return optional(l.MaxMemory) })},
		},
	}
}

// expiryIn returns how long a key is valid yet.
func expiryIn(k sandbox.Key, now time.Time) string {
	switch {
	case k.ExpiresAt == nil:
		return "never"
	case !now.Before(*k.ExpiresAt):
		return "expired"
	}
	return "in " + roughly(k.ExpiresAt.Sub(now))
}

func number(n *int) string {
	if n == nil {
		return ""
	}
	return strconv.Itoa(*n)
}

package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sandbox.internal/clients/cli/internal/show"
	sandbox "sandbox.internal/clients/go"
)

// ruleRow is one line of a policy.
type ruleRow struct{ action, target string }

var ruleColumns = []show.Column[ruleRow]{
	{Title: "ACTION", Value: func(r ruleRow) string { return r.action }},
	{Title: "TARGET", Value: func(r ruleRow) string { return r.target }, Least: 12},
}

// showPolicy prints a policy: its rules in their order, and what happens to all else.
func (t *tool) showPolicy(policy sandbox.NetworkPolicy) error {
	if t.Printer.Structured() {
		return t.ShowValue(policy)
	}
	var rows []ruleRow
	for _, rule := range policy.Egress {
		rows = append(rows, ruleRow{string(rule.Action), rule.Target})
	}
	if t.Printer.Quiet || t.Printer.Format == show.FormatName {
		return show.Text(t.Printer, show.View[ruleRow]{ID: func(r ruleRow) string { return r.target }}, rows)
	}
	action := string(sandbox.Allow)
	if policy.DefaultAction != nil {
		action = string(*policy.DefaultAction)
	}
	rest := "(all else)"
	if optional(policy.DryRun) {
		rest = "(all else; a dry run: everything passes)"
	}
	rows = append(rows, ruleRow{action, rest})
	limit := t.width()
	if t.Printer.Format == show.FormatWide {
		limit = 0
	}
	return show.WriteTable(t.Printer, t.Stdout, ruleColumns, rows, limit)
}

var decisionView = show.View[sandbox.NetworkDecision]{
	ID: func(d sandbox.NetworkDecision) string { return d.Target },
	Columns: []show.Column[sandbox.NetworkDecision]{
		{Title: "LAST", Usual: 8, Value: func(d sandbox.NetworkDecision) string {
			return d.LastSeen.Local().Format(time.TimeOnly)
		}},
		{Title: "ACTION", Usual: 6, Value: func(d sandbox.NetworkDecision) string {
			return string(d.Action)
		}},
		{Title: "TARGET", Usual: 24, Least: 12, Value: func(d sandbox.NetworkDecision) string {
			if d.Port == nil {
				return d.Target
			}
			return fmt.Sprintf("%s %s/%d", d.Target, optional(d.Protocol), *d.Port)
		}},
		{Title: "COUNT", Usual: 5, Value: func(d sandbox.NetworkDecision) string {
			return fmt.Sprint(d.Count)
		}},
		{Title: "WHY", Usual: 24, Least: 6, Value: func(d sandbox.NetworkDecision) string {
			return strings.TrimSpace(string(d.Reason) + " " + optional(d.Rule))
		}},
		{Title: "NAMES", Wide: true, Value: func(d sandbox.NetworkDecision) string {
			return strings.Join(d.Names, ",")
		}},
	},
}

func networkCommand(t *tool) *cobra.Command {
	command := &cobra.Command{
		Use:   "network",
		Short: "See and change what a sandbox may reach",
		Long: "See and change what a sandbox may reach. It needs a service with egress\n" +
			"sidecars.",
		Example: "  sandbox network show box",
		RunE:    groupOf,
	}
	policy := func(use, short, example string, least int, do func(context.Context,
		*sandbox.Sandbox, []string) (sandbox.NetworkPolicy, error)) *cobra.Command {
		what, most := "a SANDBOX", 1
		if least > 1 {
			what, most = "a SANDBOX and a TARGET", -1
		}
		c := &cobra.Command{
			Use: use, Short: short, Example: example,
			Args: arguments(least, most, what), ValidArgsFunction: t.completeNames(1),
			RunE: func(c *cobra.Command, args []string) error {
				box, err := t.find(c.Context(), args[0])
				if err != nil {
					return err
				}
				policy, err := do(c.Context(), box, args[1:])
				if err != nil {
					return err
				}
				return t.showPolicy(policy)
			},
		}
		t.registerOutput(c, "targets")
		return c
	}
	command.AddCommand(
		policy("show [flags] SANDBOX", "Show the policy in force", "  sandbox network show box", 1,
			func(ctx context.Context, box *sandbox.Sandbox, _ []string) (sandbox.NetworkPolicy, error) {
				return box.Network.Policy(ctx)
			}),
		policy("allow [flags] SANDBOX TARGET...",
			"Allow names, wildcard names, addresses or ranges before all else",
			"  sandbox network allow box pypi.org '*.pythonhosted.org'", 2,
			func(ctx context.Context, box *sandbox.Sandbox, targets []string) (sandbox.NetworkPolicy, error) {
				return box.Network.Allow(ctx, targets...)
			}),
		policy("deny [flags] SANDBOX TARGET...",
			"Deny names, wildcard names, addresses or ranges before all else",
			"  sandbox network deny box 10.0.0.0/8", 2,
			func(ctx context.Context, box *sandbox.Sandbox, targets []string) (sandbox.NetworkPolicy, error) {
				return box.Network.Deny(ctx, targets...)
			}),
		proposeCommand(t), decisionsCommand(t))
	return command
}

func proposeCommand(t *tool) *cobra.Command {
	apply := false
	command := &cobra.Command{
		Use:   "propose [flags] SANDBOX",
		Short: "Propose the smallest policy that allows what was reached so far",
		Example: "  sandbox network propose box -o yaml\n" +
			"  sandbox network propose box --apply",
		Args:              arguments(1, 1, "a SANDBOX"),
		ValidArgsFunction: t.completeNames(1),
		RunE: func(c *cobra.Command, args []string) error {
			box, err := t.find(c.Context(), args[0])
			if err != nil {
				return err
			}
			policy, err := box.Network.Propose(c.Context())
			if err == nil && apply {
				policy, err = box.Network.SetPolicy(c.Context(), policy)
			}
			if err != nil {
				return err
			}
			return t.showPolicy(policy)
		},
	}
	command.Flags().BoolVar(&apply, "apply", false, "make it the policy")
	t.registerOutput(command, "targets")
	return command
}

func decisionsCommand(t *tool) *cobra.Command {
	once := false
	command := &cobra.Command{
		Use:   "watch [flags] SANDBOX",
		Short: "Show what was allowed and denied, and go on as it happens",
		Example: "  sandbox network watch box\n" +
			"  sandbox network watch --once box",
		Args:              arguments(1, 1, "a SANDBOX"),
		ValidArgsFunction: t.completeNames(1),
		RunE: func(c *cobra.Command, args []string) error {
			box, err := t.find(c.Context(), args[0])
			if err != nil {
				return err
			}
			if once {
				list, err := box.Network.Decisions(c.Context())
				if err != nil {
					return err
				}
				return show.All(t.Printer, decisionView, list)
			}
			printed := show.NewRows(t.Printer, decisionView)
			for decision, err := range box.Network.WatchDecisions(c.Context()) {
				if err != nil {
					return err
				}
				if err := printed.Print(decision); err != nil {
					return err
				}
			}
			return context.Cause(c.Context())
		},
	}
	command.Flags().BoolVar(&once, "once", false, "end with what there is")
	t.registerOutput(command, "targets")
	return command
}

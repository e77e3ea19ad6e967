package cli

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	sandbox "sandbox.internal/clients/go"
)

// runsPrograms is an annotation of commands that exit as docker run does.
const runsPrograms = "runs-programs"

// The groups of the help.
const (
	groupLife    = "life"
	groupInside  = "inside"
	groupWatch   = "watch"
	groupNetwork = "network"
	groupTool    = "tool"
)

// newRoot returns the command line with all of its commands.
func newRoot(t *tool) *cobra.Command {
	root := &cobra.Command{
		Use:   "sandbox",
		Short: "Create, use and watch sandboxes",
		Long: "Create, use and watch sandboxes.\n\n" +
			"A SANDBOX is named by its id, by the first characters of its id, or by its\n" +
			"metadata.name.\n\n" +
			"The service is that of --url, --context, $" + sandbox.URLVariable + ", or the context that login\n" +
			"made the current one, or else " + sandbox.DefaultURL + ".",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs, // groupOf names the first of them
		RunE:          groupOf,
	}
	own := ownBuild()
	root.Version = describeBuild(own)
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.SetOut(t.Stdout)
	root.SetErr(t.Stderr)
	root.SetIn(t.Stdin)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return flagError(err) })
	root.SetUsageTemplate(strings.NewReplacer(
		"LocalFlags.FlagUsages", "LocalFlags.FlagUsagesWrapped 80",
		"InheritedFlags.FlagUsages", "InheritedFlags.FlagUsagesWrapped 80",
	).Replace(root.UsageTemplate()))
	t.target.register(root.PersistentFlags())
	_ = root.RegisterFlagCompletionFunc("context", t.completeContexts)
	root.AddGroup(
		&cobra.Group{ID: groupLife, Title: "The life of sandboxes:"},
		&cobra.Group{ID: groupInside, Title: "Inside a sandbox:"},
		&cobra.Group{ID: groupWatch, Title: "Watching:"},
		&cobra.Group{ID: groupNetwork, Title: "Network:"},
		&cobra.Group{ID: groupTool, Title: "This tool and the service:"},
	)
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add(groupLife, runCommand(t), createCommand(t), listCommand(t), getCommand(t), pauseCommand(t),
		resumeCommand(t), renewCommand(t), lifecycleCommand(t), waitCommand(t), snapshotCommand(t), rollbackCommand(t), forkCommand(t), removeCommand(t))
	add(groupInside, execCommand(t), commandsCommand(t), shellCommand(t), sshCommand(t), sshConfigCommand(t),
		codeCommand(t), copyCommand(t), filesCommand(t))
	add(groupWatch, logsCommand(t), eventsCommand(t), activityCommand(t), holdsCommand(t), statsCommand(t), topCommand(t))
	add(groupNetwork, portCommand(t), urlCommand(t), networkCommand(t))
	add(groupTool, loginCommand(t), contextCommand(t), doctorCommand(t), mcpCommand(t), benchCommand(t),
		imageCommand(t), keyCommand(t), demoCommand(t), versionCommand(t), docsCommand(t))
	root.AddCommand(append(shortcuts(t), sshProxyCommand(t))...)
	root.SetHelpCommandGroupID(groupTool)
	root.SetCompletionCommandGroupID(groupTool)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		c.DisableFlagsInUseLine = true
		for _, sub := range c.Commands() {
			sub.DisableFlagsInUseLine = true
		}
	}
	return root
}

// flagError says what the value of a flag must be, without the words of package strconv.
func flagError(err error) error {
	var invalid *pflag.InvalidValueError
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		if hint, ok := flagHints[unknown.GetSpecifiedName()]; ok {
			return usageErrorf("%v: %s", err, hint)
		}
	}
	if !errors.As(err, &invalid) {
		return usageError{err.Error()}
	}
	var must string
	switch flag := invalid.GetFlag(); flag.Value.Type() {
	case "duration":
		must = "a duration such as 90s or 10m"
	case "int", "int64", "uint16":
		must = "a whole number"
	case "bool":
		must = "true or false"
	default:
		return usageError{err.Error()}
	}
	return usageErrorf("%s: must be %s, not %q", invalid.GetFlag().Name, must, invalid.GetValue())
}

// groupOf is what a command does that only has subcommands.
func groupOf(command *cobra.Command, args []string) error {
	if len(args) == 0 {
		return command.Help()
	}
	if hint, ok := commandHints[args[0]]; ok && !command.HasParent() {
		return usageErrorf("there is no command %q: %s", args[0], hint)
	}
	hint := ""
	command.SuggestionsMinimumDistance = 1
	if near := command.SuggestionsFor(args[0]); len(near) > 0 {
		hint = "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return usageErrorf("there is no command %q%s", args[0], hint)
}

// arguments checks how many arguments there are; most is -1 for any number. what names them.
func arguments(least, most int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) < least && least == most:
			return usageErrorf("needs %s", what)
		case len(args) < least:
			return usageErrorf("needs at least %s", what)
		case most >= 0 && len(args) > most:
			return usageErrorf("unexpected argument %q", args[most])
		}
		return nil
	}
}

// afterDash returns the arguments of a command that stops looking for flags at its first
// argument, without the "--" that may stand between the arguments of the tool and the program.
func afterDash(args []string, own int) []string {
	rest := args[min(own, len(args)):]
	if len(rest) > 0 && rest[0] == "--" {
		return slices.Clone(rest[1:])
	}
	return slices.Clone(rest)
}

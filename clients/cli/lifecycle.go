package cli

import (
	"cmp"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sandbox.internal/clients/cli/internal/show"
	sandbox "sandbox.internal/clients/go"
)

// sleepFlags are the flags for when a sandbox falls asleep or ends by itself.
type sleepFlags struct {
	given     func(flag string) bool
	onIdle    string
	idle      time.Duration
	hibernate time.Duration
	onTimeout string
	noResume  bool
}

// register adds the flags. Without --idle that is otherwise.
func (f *sleepFlags) register(flags *pflag.FlagSet, otherwise string) {
	f.given = flags.Changed
	flags.StringVar(&f.onIdle, "on-idle", "",
		"`none`, pause, hibernate or delete: when nothing keeps it awake")
	flags.DurationVar(&f.idle, "idle", 0, "for how long nothing must, from 50ms to 24h"+otherwise)
	flags.DurationVar(&f.hibernate, "hibernate-after", 0, "asleep for how long it goes to the disk, from 1s to 168h")
	flags.StringVar(&f.onTimeout, "on-timeout", "", "`delete` or pause: what happens when its time is up")
	flags.BoolVar(&f.noResume, "no-auto-resume", false, "let nothing but a resume wake it")
}

// options returns what the flags ask for; nil where they ask for nothing.
func (f *sleepFlags) options() (*sandbox.LifecycleOptions, error) {
	asked := false
	for _, flag := range []string{"on-idle", "idle", "hibernate-after", "on-timeout", "no-auto-resume"} {
		asked = asked || f.given(flag)
	}
	if !asked {
		return nil, nil
	}
	if f.given("idle") && (f.idle < 50*time.Millisecond || f.idle > 24*time.Hour) {
		return nil, usageErrorf("idle: must be from 50ms to 24h, not %s", f.idle)
	}
	if f.given("hibernate-after") && (f.hibernate < time.Second || f.hibernate > 7*24*time.Hour) {
		return nil, usageErrorf("hibernate-after: must be from 1s to 168h, not %s", f.hibernate)
	}
	o := &sandbox.LifecycleOptions{OnIdle: f.onIdle, Idle: f.idle, Hibernate: f.hibernate, OnTimeout: f.onTimeout}
	if f.given("no-auto-resume") {
		o.AutoResume = new(!f.noResume)
	}
	return o, nil
}

func lifecycleCommand(t *tool) *cobra.Command {
	var flags sleepFlags
	autoResume := false
	command := &cobra.Command{
		Use:   "lifecycle [flags] SANDBOX",
		Short: "Print or change when a sandbox sleeps or ends by itself",
		Long: "Print when a sandbox falls asleep or ends by itself. With flags, change that:\n" +
			"what no flag names stays as it is.",
		Example: "  sandbox lifecycle box\n" +
			"  sandbox lifecycle box --on-idle hibernate --hibernate-after 5m\n" +
			"  sandbox lifecycle box --on-timeout pause",
		Args:              arguments(1, 1, "a SANDBOX"),
		ValidArgsFunction: t.completeNames(1),
		RunE: func(c *cobra.Command, args []string) error {
			options, err := flags.options()
			if err != nil {
				return err
			}
			if autoResume && flags.noResume {
				return usageErrorf("auto-resume: must not be given with --no-auto-resume")
			}
			if autoResume {
				options = cmp.Or(options, &sandbox.LifecycleOptions{})
				options.AutoResume = new(true)
			}
			box, err := t.find(c.Context(), args[0])
			if err != nil {
				return err
			}
			if options != nil {
				if _, err := box.UpdateLifecycle(c.Context(), *options); err != nil {
					return err
				}
			}
			return show.Item(t.Printer, lifecycleView(label(box.Info())), optional(box.Info().Lifecycle))
		},
	}
	flags.register(command.Flags(), "")
	command.Flags().BoolVar(&autoResume, "auto-resume", false, "let requests wake it")
	t.registerOutput(command, "the name of the sandbox")
	return command
}

// lifecycleView shows the settings of the sandbox with that name.
func lifecycleView(name string) show.View[sandbox.Lifecycle] {
	return show.View[sandbox.Lifecycle]{
		ID: func(sandbox.Lifecycle) string { return name },
		Columns: []show.Column[sandbox.Lifecycle]{
			{Title: "ON IDLE", Value: func(l sandbox.Lifecycle) string { return optional(l.OnIdle) }},
			{Title: "IDLE", Value: func(l sandbox.Lifecycle) string {
				return time.Duration(optional(l.IdleSeconds) * float64(time.Second)).String()
			}},
			{Title: "HIBERNATE", Value: func(l sandbox.Lifecycle) string {
				if optional(l.OnIdle) != sandbox.OnIdleHibernate {
					return "-"
				}
				return time.Duration(optional(l.HibernateSeconds) * float64(time.Second)).String()
			}},
			{Title: "ON TIMEOUT", Value: func(l sandbox.Lifecycle) string { return optional(l.OnTimeout) }},
			{Title: "AUTO RESUME", Value: func(l sandbox.Lifecycle) string {
				if optional(l.AutoResume) {
					return "yes"
				}
				return "no"
			}},
		},
	}
}

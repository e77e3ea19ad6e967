package cli

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// commandHints say what to type in place of commands that docker, podman, kubectl or another
// sandbox service has and this tool has not, because the word means something else there.
var commandHints = map[string]string{
	"apply":   "'sandbox create' makes a sandbox",
	"attach":  "'sandbox logs -f' follows the main program, 'sandbox shell' opens a terminal",
	"build":   "build images with docker or podman; 'sandbox image load' takes what they save",
	"commit":  "'sandbox cp' gets files out of a sandbox",
	"compose": "'sandbox create' makes one sandbox at a time",
	"connect": "'sandbox shell' opens a terminal in a sandbox",
	"export":  "'sandbox cp SANDBOX:/PATH -' writes a tar stream",
	"info":    "'sandbox doctor' checks the service, 'sandbox version' shows what it offers",
	"kill":    "'sandbox rm' ends a sandbox and deletes what is in it",
	"push":    "push images with docker or podman; 'sandbox image pull' gets them here",
	"restart": "'sandbox rm' and 'sandbox create' make a new one",
	"save":    "'sandbox cp SANDBOX:/PATH -' writes a tar stream",
	"scale":   "'sandbox create' makes one sandbox at a time",
	"start":   "'sandbox resume' lets a paused sandbox go on, 'sandbox create' makes a new one",
	"stop":    "'sandbox pause' keeps processes and memory, 'sandbox rm' ends a sandbox",
	"tag":     "tag images with docker or podman; 'sandbox image load' takes what they save",
	"update":  "'sandbox renew' moves the expiry",
	"volume":  "'sandbox create -v NAME:/PATH' makes a volume where there is none",
}

// flagHints are those of flags.
var flagHints = map[string]string{
	"cap-add":    "the capabilities of sandboxes are in the service's configuration",
	"namespace":  "the service's configuration names the namespace",
	"n":          "the service's configuration names the namespace",
	"privileged": "a sandbox never is",
	"pull":       "'sandbox image rm' and 'sandbox image pull' get a newer image",
	"restart":    "a sandbox that has ended is not started again",
}

// aliases of flags that other tools have for the same thing.
var flagAliases = map[string]string{"cpus": "cpu", "gpus": "gpu", "label": "metadata"}

// acceptAliases lets a command take flags by the names that other tools have for them.
func acceptAliases(command *cobra.Command) {
	command.Flags().SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if ours, ok := flagAliases[name]; ok {
			name = ours
		}
		return pflag.NormalizedName(name)
	})
}

// shortcuts returns commands of groups under the names that docker has for them, which the help
// leaves out.
func shortcuts(t *tool) []*cobra.Command {
	list, pull, remove := imageListCommand(t), imagePullCommand(t), imageRemoveCommand(t)
	list.Use, list.Aliases = "images [flags]", nil
	remove.Use = "rmi IMAGE..."
	commands := []*cobra.Command{list, pull, remove}
	for _, c := range commands {
		c.Hidden = true
	}
	return commands
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"sandbox.internal/clients/cli/internal/show"
	sandbox "sandbox.internal/clients/go"
)

var fileView = show.View[sandbox.FileInfo]{
	ID: func(f sandbox.FileInfo) string { return f.Path },
	Columns: []show.Column[sandbox.FileInfo]{
		{Title: "MODE", Value: func(f sandbox.FileInfo) string {
			return string(f.Type)[:1] + fmt.Sprintf("%04d", f.Mode)
		}},
		{Title: "OWNER", Least: 6, Value: func(f sandbox.FileInfo) string { return f.Owner + ":" + f.Group }},
		{Title: "SIZE", Value: func(f sandbox.FileInfo) string { return strconv.FormatInt(f.Size, 10) }},
		{Title: "MODIFIED", Value: func(f sandbox.FileInfo) string {
			return f.ModifiedAt.Local().Format("2006-01-02 15:04")
		}},
		{Title: "PATH", Least: 8, Value: func(f sandbox.FileInfo) string { return f.Path }},
	},
}

var fileEventView = show.View[sandbox.FileEvent]{
	ID: func(e sandbox.FileEvent) string { return optional(e.Path) },
	Columns: []show.Column[sandbox.FileEvent]{
		{Title: "TIME", Usual: 8, Value: func(e sandbox.FileEvent) string {
			return time.UnixMilli(e.Timestamp).Format(time.TimeOnly)
		}},
		{Title: "EVENT", Usual: 8, Value: func(e sandbox.FileEvent) string { return string(e.Type) }},
		{Title: "PATH", Usual: 400, Least: 8, Value: func(e sandbox.FileEvent) string {
			return optional(e.Path) + optional(e.Message)
		}},
	},
}

// fileCommand is a command on paths of one sandbox, with results when output is set.
func fileCommand(t *tool, use, short, example string, least, most int, output bool,
	do func(ctx context.Context, box *sandbox.Sandbox, paths []string) error) *cobra.Command {
	what := "a SANDBOX and a PATH"
	if least > 2 {
		what = "a SANDBOX and two more arguments"
	}
	command := &cobra.Command{
		Use: use, Short: short, Example: example,
		Args:              arguments(least, most, what),
		ValidArgsFunction: t.completeNames(1),
		RunE: func(c *cobra.Command, args []string) error {
			box, err := t.find(c.Context(), args[0])
			if err != nil {
				return err
			}
			return do(c.Context(), box, args[1:])
		},
	}
	if output {
		t.registerOutput(command, "paths")
	}
	return command
}

func filesCommand(t *tool) *cobra.Command {
	command := &cobra.Command{
		Use:     "files",
		Short:   "Work with the files of a sandbox",
		Example: "  sandbox files ls box /etc",
		RunE:    groupOf,
	}
	command.AddCommand(filesList(t), filesCat(t), filesGet(t), filesPut(t), filesMakeDirectory(t), filesRemove(t),
		filesMove(t), filesChangeMode(t), filesFind(t), filesWatch(t))
	return command
}

func filesList(t *tool) *cobra.Command {
	depth := 1
	command := fileCommand(t, "ls [flags] SANDBOX [PATH]", "List what a directory holds",
		"  sandbox files ls box /etc\n  sandbox files ls box /etc/apt --depth 2 -o json", 1, 2, true,
		func(ctx context.Context, box *sandbox.Sandbox, paths []string) error {
			if depth < 1 {
				return usageErrorf("depth: must be at least 1")
			}
			directory := "."
			if len(paths) > 0 {
				directory = paths[0]
			}
			list, err := box.Files.List(ctx, directory, depth)
			if err != nil {
				return err
			}
			return show.All(t.Printer, fileView, list)
		})
	command.Flags().IntVar(&depth, "depth", depth, "how many levels to list")
	return command
}

func filesCat(t *tool) *cobra.Command {
	return fileCommand(t, "cat SANDBOX PATH...", "Print files",
		"  sandbox files cat box /etc/os-release", 2, -1, false,
		func(ctx context.Context, box *sandbox.Sandbox, paths []string) error {
			for _, name := range paths {
				content, err := box.Files.Open(ctx, name, nil)
				if err != nil {
					return err
				}
				_, err = io.Copy(t.Stdout, content)
				if err := errors.Join(err, content.Close()); err != nil {
					return err
				}
			}
			return nil
		})
}

func filesPut(t *tool) *cobra.Command {
	var text string
	command := fileCommand(t, "put [flags] SANDBOX PATH", "Write the standard input to a file",
		"  echo hello | sandbox files put box /tmp/hello.txt --mode 600", 2, 2, false,
		func(ctx context.Context, box *sandbox.Sandbox, paths []string) error {
			options, err := withMode(text)
			if err != nil {
				return err
			}
			sent := t.newTransfer(path.Base(paths[0]), 0)
			defer sent.end()
			return box.Files.WriteFrom(ctx, paths[0], sent.reader(t.Stdin), options)
		})
	command.Flags().StringVar(&text, "mode", "", "the `MODE` of the file, in octal digits")
	return command
}

// parseMode reads octal digits, and returns them as the client takes them.
func parseMode(text string) (string, error) {
	mode, err := strconv.ParseUint(text, 8, 12)
	if err != nil {
		return "", usageErrorf("mode: must be octal digits such as 644, not %q", text)
	}
	return digits(uint32(mode)), nil
}

// withMode returns options with a mode, which may be missing.
func withMode(text string) (*sandbox.WriteOptions, error) {
	if text == "" {
		return &sandbox.WriteOptions{}, nil
	}
	mode, err := parseMode(text)
	return &sandbox.WriteOptions{Mode: mode}, err
}

func filesGet(t *tool) *cobra.Command {
	command := fileCommand(t, "get [flags] SANDBOX PATH [LOCAL]", "Copy a file or directory to this machine",
		"  sandbox files get box /etc/os-release\n  sandbox files get box /var/log logs", 2, 3, false,
		func(ctx context.Context, box *sandbox.Sandbox, paths []string) error {
			local := "."
			if len(paths) > 1 {
				local = paths[1]
			}
			return (&copier{t: t, box: box}).download(ctx, paths[0], local)
		})
	command.Flags().BoolVarP(&t.Printer.Quiet, "quiet", "q", false, "show no progress")
	return command
}

func filesMakeDirectory(t *tool) *cobra.Command {
	var text string
	parents := true
	command := fileCommand(t, "mkdir [flags] SANDBOX PATH...", "Make directories and their missing parents",
		"  sandbox files mkdir box /srv/data /srv/logs --mode 750", 2, -1, false,
		func(ctx context.Context, box *sandbox.Sandbox, paths []string) error {
			options, err := withMode(text)
			if err != nil {
				return err
			}
			for _, name := range paths {
				if err := box.Files.MakeDirectory(ctx, name, options); err != nil {
					return err
				}
			}
			return nil
		})
	command.Flags().StringVar(&text, "mode", "", "their `MODE`, in octal digits")
	command.Flags().BoolVarP(&parents, "parents", "p", true, "make missing parents, which is always done")
	_ = command.Flags().MarkHidden("parents")
	return command
}

func filesChangeMode(t *tool) *cobra.Command {
	return fileCommand(t, "chmod SANDBOX MODE PATH...", "Change the modes of files and directories",
		"  sandbox files chmod box 644 /tmp/greeting.txt", 3, -1, false,
		func(ctx context.Context, box *sandbox.Sandbox, args []string) error {
			mode, err := parseMode(args[0])
			if err != nil {
				return err
			}
			permissions := map[string]sandbox.Permission{}
			for _, name := range args[1:] {
				permissions[name] = sandbox.Permission{Mode: mode}
			}
			return box.Files.SetPermissions(ctx, permissions)
		})
}

func filesRemove(t *tool) *cobra.Command {
	recursive := false
	command := fileCommand(t, "rm [flags] SANDBOX PATH...", "Remove files",
		"  sandbox files rm box /tmp/greeting.txt\n  sandbox files rm -r box /tmp/old", 2, -1, false,
		func(ctx context.Context, box *sandbox.Sandbox, paths []string) error {
			if !recursive {
				return box.Files.Delete(ctx, paths...)
			}
			infos, err := box.Files.Info(ctx, paths...)
			if err != nil {
				return err
			}
			for _, name := range paths {
				remove := box.Files.Delete
				if infos[name].Type == "directory" {
					remove = box.Files.DeleteDirectory
				}
				if err := remove(ctx, name); err != nil {
					return err
				}
			}
			return nil
		})
	command.Flags().BoolVarP(&recursive, "recursive", "r", false,
		"directories too, with everything in them")
	return command
}

func filesMove(t *tool) *cobra.Command {
	return fileCommand(t, "mv SANDBOX SOURCE DESTINATION", "Move or rename a file or directory",
		"  sandbox files mv box /tmp/hello.txt /tmp/greeting.txt", 3, 3, false,
		func(ctx context.Context, box *sandbox.Sandbox, paths []string) error {
			to := paths[1]
			infos, err := box.Files.Info(ctx, to)
			switch {
			case err == nil && infos[to].Type == "directory":
				to = path.Join(to, path.Base(paths[0]))
			case err != nil && !errors.Is(err, sandbox.ErrNotFound):
				return err
			}
			return box.Files.Move(ctx, sandbox.Move{Src: paths[0], Dest: to})
		})
}

func filesFind(t *tool) *cobra.Command {
	return fileCommand(t, "find [flags] SANDBOX PATH [PATTERN]", "Find files by a glob",
		"  sandbox files find box /etc '*.conf' -q", 2, 3, true,
		func(ctx context.Context, box *sandbox.Sandbox, args []string) error {
			pattern := ""
			if len(args) > 1 {
				pattern = args[1]
			}
			list, err := box.Files.Search(ctx, args[0], pattern)
			if err != nil {
				return err
			}
			return show.All(t.Printer, fileView, list)
		})
}

func filesWatch(t *tool) *cobra.Command {
	recursive := false
	command := fileCommand(t, "watch [flags] SANDBOX PATH", "Print what happens to files",
		"  sandbox files watch -r box /tmp", 2, 2, true,
		func(ctx context.Context, box *sandbox.Sandbox, paths []string) error {
			printed := show.NewRows(t.Printer, fileEventView)
			for event, err := range box.Files.Watch(ctx, paths[0], recursive) {
				if err != nil {
					return err
				}
				if err := printed.Print(event); err != nil {
					return err
				}
			}
			return context.Cause(ctx)
		})
	command.Flags().BoolVarP(&recursive, "recursive", "r", false, "everything below a directory, too")
	return command
}

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sandbox.internal/clients/cli/internal/show"
	sandbox "sandbox.internal/clients/go"
)

func imageCommand(t *tool) *cobra.Command {
	command := &cobra.Command{
		Use:   "image",
		Short: "See and change the images that the service's engine has",
		Long: "See and change the images that the service's engine has. It needs a key with the\n" +
			"role admin, and a service with an engine of its own: a cluster's nodes manage\n" +
			"their images.",
		Example: "  sandbox image ls",
		RunE:    groupOf,
	}
	command.AddCommand(imageListCommand(t), imagePullCommand(t), imageLoadCommand(t),
		imageRemoveCommand(t), imagePruneCommand(t))
	return command
}

func imageListCommand(t *tool) *cobra.Command {
	command := &cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"list"},
		Short:   "List images",
		Example: "  sandbox image ls\n" +
			"  sandbox image ls -o wide",
		Args: arguments(0, 0, ""),
		RunE: func(c *cobra.Command, _ []string) error {
			images, err := t.images()
			if err != nil {
				return err
			}
			list, err := images.List(c.Context())
			if err != nil {
				return err
			}
			return show.All(t.Printer, t.imageView(), list)
		},
	}
	t.registerOutput(command, "ids")
	return command
}

func imagePullCommand(t *tool) *cobra.Command {
	user := ""
	command := &cobra.Command{
		Use:   "pull [flags] IMAGE",
		Short: "Have the engine get an image that it does not have",
		Long: "Have the engine get an image that it does not have. One that it has is not asked\n" +
			"for again: remove its name first.",
		Example: "  sandbox image pull sandbox/base:dev",
		Args:    arguments(1, 1, "an IMAGE"),
		RunE: func(c *cobra.Command, args []string) error {
			images, err := t.images()
			if err != nil {
				return err
			}
			var options sandbox.PullOptions
			if user != "" {
				options.Username, options.Password = user, t.Env("SANDBOX_REGISTRY_PASSWORD")
			}
			if line := t.newProgress(); line != nil {
				line.show("pulling " + args[0])
				defer line.clear()
			}
			image, err := images.Pull(c.Context(), args[0], &options)
			if err != nil {
				return err
			}
			return show.Item(t.Printer, t.imageView(), image)
		},
	}
	command.Flags().StringVar(&user, "registry-user", "",
		"`USER` at the image's registry; the password is in $SANDBOX_REGISTRY_PASSWORD")
	t.registerOutput(command, "ids")
	return command
}

func imageLoadCommand(t *tool) *cobra.Command {
	command := &cobra.Command{
		Use:   "load [flags] FILE",
		Short: "Send images to the engine, from an archive",
		Long: "Send images to the engine, from an archive as docker save writes it or an OCI\n" +
			"image layout in a tar file. A FILE of - is the standard input.",
		Example: "  sandbox image load image.tar\n" +
			"  cat image.tar | sandbox image load -",
		Args: arguments(1, 1, "a FILE"),
		RunE: func(c *cobra.Command, args []string) error {
			return t.loadImages(c.Context(), args[0])
		},
	}
	t.registerOutput(command, "ids")
	return command
}

func (t *tool) loadImages(ctx context.Context, name string) error {
	images, err := t.images()
	if err != nil {
		return err
	}
	archive, size := t.Stdin, int64(0)
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		info, err := file.Stat()
		if err != nil {
			return err
		}
		archive, size = file, info.Size()
	}
	sent := t.newTransfer(filepath.Base(name), size)
	// Without its other methods, so that the client neither closes nor measures it.
	list, err := images.Load(ctx, sent.reader(struct{ io.Reader }{archive}))
	sent.end()
	if err != nil {
		return err
	}
	return show.All(t.Printer, t.imageView(), list)
}

func imageRemoveCommand(t *tool) *cobra.Command {
	return &cobra.Command{
		Use:     "rm IMAGE...",
		Short:   "Take names away from images, or with an id all of its names",
		Example: "  sandbox image rm example/tool:1",
		Args:    arguments(1, -1, "an IMAGE"),
		RunE: func(c *cobra.Command, args []string) error {
			images, err := t.images()
			if err != nil {
				return err
			}
			var failed []error
			for _, name := range args {
				failed = append(failed, images.Remove(c.Context(), name))
			}
			return errors.Join(failed...)
		},
	}
}

func imagePruneCommand(t *tool) *cobra.Command {
	all := false
	command := &cobra.Command{
		Use:   "prune [flags]",
		Short: "Remove images that have no name and no sandbox",
		Long: "Remove images that have no name and no sandbox. Those that were loaded or used\n" +
			"in the last minutes stay, and it says how many. A Docker Engine has images of\n" +
			"other programs too: there it is refused.",
		Example: "  sandbox image prune --all",
		Args:    arguments(0, 0, ""),
		RunE: func(c *cobra.Command, _ []string) error {
			images, err := t.images()
			if err != nil {
				return err
			}
			pruned, err := images.Prune(c.Context(), all)
			if err != nil {
				return err
			}
			_, err = io.WriteString(t.Stdout, bytesOf(pruned.FreedBytes)+" freed\n"+recentImages(pruned))
			return err
		},
	}
	command.Flags().BoolVarP(&all, "all", "a", false, "also those with a name that no sandbox uses")
	return command
}

// recentImages says which images a removal has left that nothing uses, and why.
func recentImages(pruned sandbox.PrunedImages) string {
	grace := roughly(time.Duration(optional(pruned.GraceSeconds)) * time.Second)
	switch n := optional(pruned.Recent); n {
	case 0:
		return ""
	case 1:
		return "1 image stays: it was loaded or used in the last " + grace + "\n"
	default:
		return fmt.Sprintf("%d images stay: they were loaded or used in the last %s\n", n, grace)
	}
}

func (t *tool) images() (sandbox.Images, error) {
	c, err := t.connect()
	if err != nil {
		return sandbox.Images{}, err
	}
	return c.client.Images, nil
}

func (t *tool) imageView() show.View[sandbox.StoredImage] {
	now := time.Now()
	// What is shown can be given to rm: the beginning of an id cannot.
	name := func(i sandbox.StoredImage) string {
		if len(i.Names) == 0 {
			return i.ID
		}
		return i.Names[0]
	}
	return show.View[sandbox.StoredImage]{
		ID:   func(i sandbox.StoredImage) string { return i.ID },
		Name: name,
		Columns: []show.Column[sandbox.StoredImage]{
			{Title: "NAME", Value: func(i sandbox.StoredImage) string {
				return cmp.Or(strings.Join(i.Names, ", "), i.ID)
			}, Least: 12},
			{Title: "ID", Wide: true, Value: func(i sandbox.StoredImage) string { return i.ID }},
			{Title: "SIZE", Value: func(i sandbox.StoredImage) string { return bytesOf(i.Bytes) }},
			{Title: "AGE", Value: func(i sandbox.StoredImage) string { return roughly(now.Sub(i.CreatedAt)) }},
			{Title: "USED", Value: func(i sandbox.StoredImage) string {
				if i.InUse {
					return "yes"
				}
				return "no"
			}},
		},
	}
}

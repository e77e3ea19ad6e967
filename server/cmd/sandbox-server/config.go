package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"sandbox.internal/server/commandline"
	"sandbox.internal/server/config"
)

// configCommand returns the commands for the configuration in the file.
func configCommand(file *string) *cobra.Command {
	command := func(name, short string, run func(file string, out io.Writer) error) *cobra.Command {
		return &cobra.Command{
			Use:   name,
			Short: short,
			Args:  commandline.NoArguments,
			RunE:  func(c *cobra.Command, _ []string) error { return run(*file, c.OutOrStdout()) },
		}
	}
	initial := command("init", "Write a commented example with a random API key", initialise)
	initial.Long = `Write a commented example, with a random API key and for 127.0.0.1, to the file
of the configuration, unless it exists. With --config - print it.

It is for Docker where a Docker Engine answers (at $DOCKER_HOST, else at
/var/run/docker.sock), and for the local engine where none does, the command is
given as root, and crun, runc or runsc is installed.`
	return commandline.Group("config", "Check, print or begin a configuration",
		command("check", "Report whether the configuration is valid", check),
		command("print", "Print the values in effect, secrets masked", print),
		initial)
}

func check(file string, out io.Writer) error {
	path, cfg, err := loadWhole(file)
	if err != nil {
		return err
	}
	warnings := cfg.Warnings()
	if exposed := cfg.Exposed(); exposed != "" {
		warnings = append(warnings, exposed)
	}
	for _, warning := range warnings {
		fmt.Fprintf(out, "warning: %s\n", warning)
	}
	fmt.Fprintf(out, "%s: valid\n", path)
	return nil
}

func print(file string, out io.Writer) error {
	_, cfg, err := load(file)
	if err != nil {
		return err
	}
	return config.Print(out, cfg)
}

// initialise never overwrites a file: it may hold the only copy of a key. Only its owner can read
// what it writes.
func initialise(file string, out io.Writer) error {
	key := make([]byte, 32)
	rand.Read(key) // crypto/rand.Read never returns an error
	example, fits := fitting(hex.EncodeToString(key), os.Getenv)
	example = config.Fit(example, thisMachine())
	if file == "-" {
		_, err := out.Write(example)
		return err
	}
	file, err := config.Path(file, os.Getenv)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("config init: %w", err)
	}
	created, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("config init: %w", err)
	}
	if _, err := created.Write(example); err != nil {
		return errors.Join(fmt.Errorf("config init: %w", err), created.Close(), os.Remove(file))
	}
	if err := created.Close(); err != nil {
		return fmt.Errorf("config init: %w", err)
	}
	fmt.Fprintf(out, "wrote %s, with a random API key (server.api_key)\n%s\n", file, fits)
	return nil
}

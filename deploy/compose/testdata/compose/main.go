// Command compose loads the Compose file FILE as `docker compose` does, with the variables of its
// environment, and writes what it says to standard output, in JSON. The exit code is 1 when the
// file does not comply with the Compose specification. It is a module of its own, so that the
// project does not depend on what the loader depends on.
package main

import (
	"context"
	"log"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: compose FILE")
	}
	options, err := cli.NewProjectOptions(os.Args[1:], cli.WithOsEnv, cli.WithEnvFiles(),
		cli.WithDotEnv, cli.WithDefaultProfiles())
	if err != nil {
		log.Fatal(err)
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	text, err := project.MarshalJSON()
	if err != nil {
		log.Fatal(err)
	}
	if _, err := os.Stdout.Write(text); err != nil {
		log.Fatal(err)
	}
}

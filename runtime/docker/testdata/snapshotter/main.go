// The snapshotter takes one snapshot, or rolls one container back, with an Engine, unless a
// failpoint kills it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/docker"
	"sandbox.internal/runtime/engine"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	err := run(ctx)
	cancel()
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run does what the arguments say: the labels of the service's containers as JSON; take or
// rollback; the name of a container; the name of a snapshot.
func run(ctx context.Context) error {
	options := docker.Options{Host: os.Getenv("DOCKER_HOST"), Logger: zerolog.New(os.Stderr)}
	if err := json.Unmarshal([]byte(os.Args[1]), &options.Bounded); err != nil {
		return err
	}
	e, err := docker.New(options)
	if err != nil {
		return err
	}
	_, err = e.Info(ctx)
	switch {
	case err != nil:
	case os.Args[2] == "take":
		_, err = e.TakeSnapshot(ctx, os.Args[3], engine.SnapshotOptions{Name: os.Args[4], Labels: options.Bounded})
	case os.Args[2] == "rollback":
		err = e.Rollback(ctx, os.Args[3], os.Args[4])
	}
	return errors.Join(err, e.Close())
}

// The snapshotter takes one snapshot, or rolls one container back, suspends, hibernates or starts
// it, with the Engine of a directory, unless a failpoint kills it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci"
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

// run does what the arguments say: the Engine's options as JSON; take, remember, rollback, start,
// suspend, hibernate, export or digest; the id of a container; the name of a snapshot.
func run(ctx context.Context) error {
	options := oci.Options{Logger: zerolog.New(os.Stderr)}
	if err := json.Unmarshal([]byte(os.Args[1]), &options); err != nil {
		return err
	}
	e, err := oci.Open(ctx, options)
	if err != nil {
		return err
	}
	switch os.Args[2] {
	case "take":
		_, err = e.TakeSnapshot(ctx, os.Args[3], engine.SnapshotOptions{Name: os.Args[4]})
	case "digest":
		_, err = e.DigestSnapshot(ctx, os.Args[4])
	case "remember": // with its memory
		_, err = e.TakeSnapshot(ctx, os.Args[3], engine.SnapshotOptions{Name: os.Args[4], Memory: true})
	case "start":
		err = e.Start(ctx, os.Args[3])
	case "export":
		_, err = e.ExportSnapshot(ctx, os.Args[4], os.Args[3])
	case "rollback":
		err = e.Rollback(ctx, os.Args[3], os.Args[4])
	case "suspend":
		err = e.Suspend(ctx, os.Args[3], 0)
	case "hibernate":
		err = e.Hibernate(ctx, os.Args[3])
	}
	return errors.Join(err, e.Close())
}

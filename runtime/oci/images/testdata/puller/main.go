// The puller pulls images into the store of a directory and removes them again, until a failpoint
// kills it.
package main

import (
	"context"
	"fmt"
	"os"
	"sync"

	"sandbox.internal/runtime/oci/images"
)

func main() {
	directory, refs := os.Args[1], os.Args[2:]
	ctx := context.Background()
	for {
		if err := pullAndPrune(ctx, directory, refs); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

func pullAndPrune(ctx context.Context, directory string, refs []string) error {
	s, err := images.Open(images.Options{Directory: directory})
	if err != nil {
		return err
	}
	var group sync.WaitGroup
	errs := make([]error, len(refs))
	for i, ref := range refs {
		group.Go(func() { _, errs[i] = s.Ensure(ctx, ref, nil, nil) })
	}
	group.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	if _, err := s.Prune(ctx, true); err != nil {
		return err
	}
	return s.Close()
}

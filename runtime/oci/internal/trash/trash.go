// Package trash removes directories in the background. Containers wrote what is in them.
package trash

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/rs/zerolog"

	"sandbox.internal/internal/remove"
	"sandbox.internal/runtime/oci/internal/layout"
)

// Trash is a directory whose entries are removed one after the other.
type Trash struct {
	directory string
	log       zerolog.Logger

	wake   chan struct{}   // holds a token while there may be something to remove
	ctx    context.Context // ends when nothing more is to be removed
	cancel context.CancelFunc
	done   chan struct{}
}

// New returns the Trash of a directory, which begins with what an earlier one has left there. The
// caller calls Stop.
func New(directory string, log zerolog.Logger) *Trash {
	t := &Trash{directory: directory, log: log, wake: make(chan struct{}, 1), done: make(chan struct{})}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.wake <- struct{}{}
	go t.run()
	return t
}

// Throw moves a directory here, under a new name; it is gone from its place when Throw returns.
// Throwing a directory that is missing succeeds.
func (t *Trash) Throw(directory string) error {
	err := os.Rename(directory, filepath.Join(t.directory, layout.NewID()))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	select {
	case t.wake <- struct{}{}:
	default:
	}
	return err
}

// Sweep throws away the entries of a directory whose names begin with the prefix.
func (t *Trash) Sweep(directory, prefix string) error {
	entries, err := os.ReadDir(directory)
	errs := []error{err}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), prefix) {
			errs = append(errs, t.Throw(filepath.Join(directory, entry.Name())))
		}
	}
	return errors.Join(errs...)
}

// Stop ends the removal after the entry that it is at. The rest goes when the directory is used
// again.
func (t *Trash) Stop() {
	t.cancel()
	<-t.done
}

func (t *Trash) run() {
	defer close(t.done)
	for {
		select {
		case <-t.wake:
			if err := t.empty(); err != nil {
				t.log.Warn().Err(err).Str("directory", t.directory).Msg("deferred delete failed; retried at the next removal")
			}
		case <-t.ctx.Done():
			return
		}
	}
}

// empty removes every entry, including those that are thrown here while it runs.
func (t *Trash) empty() error {
	failed := map[string]error{}
	for {
		entries, err := os.ReadDir(t.directory)
		if err != nil {
			return err
		}
		progress := false
		for _, entry := range entries {
			if failed[entry.Name()] != nil {
				continue
			}
			progress = true
			err := remove.All(t.ctx, filepath.Join(t.directory, entry.Name()))
			if t.ctx.Err() != nil {
				return nil
			}
			if err != nil {
				failed[entry.Name()] = err
			}
		}
		if !progress {
			for _, err := range failed {
				return err // the first of any says enough
			}
			return nil
		}
	}
}

package oci

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/rs/zerolog"

	"sandbox.internal/internal/remove"
)

// trash removes folders in the background. What is in them was written by containers.
type trash struct {
	folder string
	log    zerolog.Logger

	wake   chan struct{}   // holds a token while there may be something to remove
	ctx    context.Context // ends when nothing more is to be removed
	cancel context.CancelFunc
	done   chan struct{}
}

func newTrash(folder string, log zerolog.Logger) *trash {
	t := &trash{folder: folder, log: log, wake: make(chan struct{}, 1), done: make(chan struct{})}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	go t.run()
	notify(t.wake) // an earlier run may have left something
	return t
}

// throw moves a folder here, under a new name; it is gone from its place when throw returns. One that is not there is no error.
func (t *trash) throw(folder string) error {
	err := os.Rename(folder, filepath.Join(t.folder, newID()))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	notify(t.wake)
	return err
}

// stop ends the removal after the entry that it is at. The rest goes when the folder is used again.
func (t *trash) stop() {
	t.cancel()
	<-t.done
}

func (t *trash) run() {
	defer close(t.done)
	for {
		select {
		case <-t.wake:
			if err := t.empty(); err != nil {
				t.log.Warn().Err(err).Str("folder", t.folder).Msg("what was removed still takes room; the next removal tries again")
			}
		case <-t.ctx.Done():
			return
		}
	}
}

// empty removes everything, also what is thrown here meanwhile.
func (t *trash) empty() error {
	failed := map[string]error{}
	for {
		entries, err := os.ReadDir(t.folder)
		if err != nil {
			return err
		}
		progress := false
		for _, entry := range entries {
			if failed[entry.Name()] != nil {
				continue
			}
			progress = true
			err := remove.All(t.ctx, filepath.Join(t.folder, entry.Name()))
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

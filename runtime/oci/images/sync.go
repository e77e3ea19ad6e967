package images

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// syncSoon makes what was written safe on the disk, behind the caller.
func (s *Store) syncSoon() {
	select {
	case s.unsaved <- struct{}{}:
	default:
	}
}

// syncPause is how long after a failure the next sync follows, which may find room on the disk
// again.
const syncPause = 10 * time.Second

func (s *Store) syncBehind() {
	var again <-chan time.Time // nil unless the last sync failed
	for {
		select {
		case <-s.ctx.Done():
			if again != nil {
				s.syncSoon() // for syncAtEnd
			}
			return
		case <-s.unsaved:
		case <-again:
		}
		again = nil
		if err := s.sync(); err != nil {
			// The layers keep their mark, so that they are removed if the host stops now.
			s.log.Error().Err(err).Msg("cannot sync images to the disk")
			again = time.After(syncPause)
		}
	}
}

// syncAtEnd is for what was written after the last sync, or when it failed: the next boot removes
// images that are not known to be safe.
func (s *Store) syncAtEnd() error {
	select {
	case <-s.unsaved:
		return s.sync()
	default:
		return nil
	}
}

// sync writes everything to the disk and then takes the mark of this boot off the layers that were
// complete before.
func (s *Store) sync() error {
	marked := s.marked()
	if err := s.syncDisk(); err != nil || len(marked) == 0 {
		return err
	}
	var failed error
	for diffID, l := range marked {
		failed = errors.Join(failed, s.unmark(diffID, l))
	}
	return errors.Join(failed, s.syncDisk())
}

func (s *Store) marked() map[string]*layer {
	s.mu.Lock()
	defer s.mu.Unlock()
	marked := map[string]*layer{}
	for diffID, l := range s.layers {
		if l.Boot != "" {
			marked[diffID] = l
		}
	}
	return marked
}

func (s *Store) unmark(diffID string, l *layer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.layers[diffID] != l {
		return nil // removed, and perhaps made again
	}
	file := l.layerFile
	file.Boot = ""
	if err := s.writeJSON(filepath.Join(s.layer(diffID), layerRecord), file); err != nil {
		return err
	}
	l.layerFile = file
	return nil
}

func (s *Store) syncDisk() error {
	directory, err := os.Open(string(s.directories))
	if err != nil {
		return err
	}
	defer func() { _ = directory.Close() }()
	if err := unix.Syncfs(int(directory.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", directory.Name(), err)
	}
	return nil
}

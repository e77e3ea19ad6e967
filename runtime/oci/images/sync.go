package images

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// syncSoon makes what was written safe on the disk, behind the caller.
func (s *Store) syncSoon() {
	select {
	case s.unsaved <- struct{}{}:
	default:
	}
}

func (s *Store) syncBehind() {
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.unsaved:
		}
		if err := s.sync(); err != nil {
			// The layers keep their mark, so that they are removed if the host stops now.
			s.log.Error().Err(err).Msg("images cannot be made safe on the disk")
		}
	}
}

// sync writes everything to the disk and then takes the mark of this boot off the layers that were complete before.
func (s *Store) sync() error {
	marked := s.marked()
	if err := s.syncDisk(); err != nil || len(marked) == 0 {
		return err
	}
	for diffID, l := range marked {
		if err := s.unmark(diffID, l); err != nil {
			return err
		}
	}
	return s.syncDisk()
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
	folder, err := os.Open(string(s.folders))
	if err != nil {
		return err
	}
	defer func() { _ = folder.Close() }()
	if err := unix.Syncfs(int(folder.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", folder.Name(), err)
	}
	return nil
}

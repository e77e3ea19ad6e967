package images

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/internal/failpoint"
	"sandbox.internal/internal/remove"
	"sandbox.internal/runtime/engine"
)

// Prune removes images without a name (with all: also those with names, but for [Options].Keep)
// that are in use by no container and held by no caller, and layers of no image, when the time of
// grace has passed since they were used last. It returns how many bytes it freed. After an end of
// ctx, whose error it returns, it goes on behind its caller until the store closes.
//
// A pull or load that would exceed [Options].MaxBytes first does the same, named images that came
// from a registry included; those that were loaded cannot be had again.
func (s *Store) Prune(ctx context.Context, all bool) (freed int64, err error) {
	return s.prune(ctx, func(n named) bool { return !all })
}

// prune removes images all of whose names pin refuses to keep, when no other prune is under way any
// more.
func (s *Store) prune(ctx context.Context, pins func(named) bool) (freed int64, err error) {
	if err := s.beginPrune(ctx); err != nil {
		return 0, err
	}
	return s.pruneInTurn(ctx, pins)
}

// beginPrune waits until no prune is under way, or for the end of ctx, whose error it returns.
func (s *Store) beginPrune(ctx context.Context) error {
	select {
	case s.pruning <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Store) endPrune() { <-s.pruning }

// pruneInTurn is prune after beginPrune, and ends the prune. An end of ctx, whose error is
// returned, ends the wait for the prune alone: what it has moved to the trash is counted no more,
// and nothing else removes it before the store opens again.
func (s *Store) pruneInTurn(ctx context.Context, pins func(named) bool) (freed int64, err error) {
	s.mu.Lock()
	if s.ctx.Err() != nil {
		s.mu.Unlock()
		s.endPrune()
		return 0, fmt.Errorf("%w: the store is closed", engine.ErrUnavailable)
	}
	type outcome struct {
		freed int64
		err   error
	}
	done := make(chan outcome)
	s.working.Go(func() {
		freed, err := s.pruneNow(pins)
		s.endPrune()
		select {
		case done <- outcome{freed, err}:
		case <-ctx.Done():
			if err != nil && s.ctx.Err() == nil {
				s.log.Warn().Err(err).Msg("cannot remove images that nothing uses")
			}
		}
	})
	s.mu.Unlock()
	select {
	case o := <-done:
		return o.freed, o.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// pruneNow ends with the store.
func (s *Store) pruneNow(pins func(named) bool) (freed int64, err error) {
	began := time.Now() // what is used from now on stays, whatever the containers were at the time of the question
	trash, freed, err := s.sweep(began, s.inUse(), pins)
	for _, path := range trash {
		failpoint.Hit(TrashedFailpoint)
		if s.ctx.Err() != nil {
			return freed, errors.Join(err, s.ctx.Err()) // what is left goes when the store opens
		}
		err = errors.Join(err, remove.All(s.ctx, path))
	}
	return freed, err
}

// sweep forgets what is not used and moves it to the trash.
func (s *Store) sweep(began time.Time, using []string, pins func(named) bool) (trash []string, freed int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pinned := map[string]bool{}
	for _, n := range s.names {
		if s.keep[n.Name] || s.keep[n.Image] || pins(n) {
			pinned[n.Image] = true
		}
	}
	for _, id := range using {
		i, ok := s.images[id]
		if !ok {
			// Its record was damaged, and which layers its containers run on is not known.
			s.log.Warn().Str("image", id).Msg("prune skipped: a container uses an image that is missing from the store")
			return nil, 0, nil
		}
		i.used = time.Now()
	}
	old := func(used time.Time) bool { return used.Before(began) && !used.Add(s.grace).After(began) }
	for id, i := range s.images {
		if !pinned[id] && i.holds == 0 && old(i.used) {
			if err := s.forget(i); err != nil {
				return trash, freed, err
			}
			freed += i.bytes
			if i.patched {
				path := s.temporary(trashDirectory)
				if err := os.Rename(s.patch(i.id), path); err != nil {
					return trash, freed, err
				}
				trash = append(trash, path)
			}
		}
	}
	needed := map[string]bool{}
	for _, i := range s.images {
		for _, diffID := range i.layers {
			needed[diffID] = true
		}
	}
	for diffID, l := range s.layers {
		if needed[diffID] || l.pins > 0 || !old(l.used) {
			continue
		}
		path := s.temporary(trashDirectory)
		if err := os.Rename(s.layer(diffID), path); err != nil {
			return trash, freed, err
		}
		delete(s.layers, diffID)
		s.bytes -= l.Bytes
		freed += l.Bytes
		trash = append(trash, path)
	}
	return trash, freed, nil
}

// Recent returns how many images [Store.Prune] with the same all would remove, had the time of
// grace since their last use passed.
func (s *Store) Recent(all bool) int {
	using := s.inUse()
	s.mu.Lock()
	defer s.mu.Unlock()
	recent := 0
	for id, i := range s.images {
		pinned := slices.ContainsFunc(slices.Collect(maps.Values(s.names)), func(n named) bool {
			return n.Image == id && (!all || s.keep[n.Name] || s.keep[n.Image])
		})
		if !pinned && i.holds == 0 && !slices.Contains(using, id) {
			recent++
		}
	}
	return recent
}

// forget removes an image and its names; its layers stay. It needs s.mu.
func (s *Store) forget(i *image) error {
	for name, n := range s.names {
		if n.Image != i.id {
			continue
		}
		if err := os.Remove(s.name(name)); err != nil {
			return err
		}
		delete(s.names, name)
	}
	if err := os.Remove(s.image(i.id)); err != nil {
		return err
	}
	failpoint.Hit(ForgottenFailpoint)
	delete(s.images, i.id)
	s.bytes -= i.bytes
	for _, diffID := range i.layers {
		if l := s.layers[diffID]; l != nil && l.used.Before(i.used) {
			l.used = i.used
		}
	}
	return nil
}

// reserve counts bytes that a layer or configuration is going to take, and makes room for them.
// Those that need room at once wait for one another: what one of them frees is room for the others
// too, and is none before it has been removed.
func (s *Store) reserve(ctx context.Context, n int64) error {
	if s.tryReserve(n) == nil {
		return nil
	}
	if err := s.beginPrune(ctx); err != nil {
		return err
	}
	if s.tryReserve(n) == nil {
		s.endPrune()
		return nil
	}
	freed, err := s.pruneInTurn(ctx, func(n named) bool { return n.Loaded })
	if ended := errors.Join(ctx.Err(), s.ctx.Err()); ended != nil {
		return ended
	}
	if err != nil {
		s.log.Warn().Err(err).Msg("cannot remove images to make room for others")
	}
	if freed > 0 {
		s.log.Info().Int64("bytes", freed).Msg("images that are not used were removed to make room for others")
	}
	return s.tryReserve(n)
}

func (s *Store) tryReserve(n int64) error {
	if err := s.checkDisk(n); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bytes > s.maxBytes-n {
		return fmt.Errorf("no room for the image: the images here take %s of the %s that they may take, and what is left of them is in use, loaded, "+
			"or was used a short time ago", mebibytes(s.bytes), mebibytes(s.maxBytes))
	}
	s.bytes += n
	return nil
}

// What images leave free of the disk: a host whose disk is full loses more than an image.
const (
	leastFree       = 1 << 30 // bytes, or
	leastFreeInodes = 1 << 16 // inodes, or
	leastFreeShare  = 20      // this part of what the disk has of either, whichever is less
)

// checkDisk returns an error that wraps ENOSPC when n more bytes, or one more inode, would leave
// less free than they must.
func (s *Store) checkDisk(n int64) error {
	var disk unix.Statfs_t
	if err := unix.Statfs(string(s.directories), &disk); err != nil {
		return fmt.Errorf("ask how much of the disk is free: %w", err)
	}
	free := int64(disk.Bavail) * disk.Bsize
	least := min(leastFree, int64(disk.Blocks)*disk.Bsize/leastFreeShare)
	if free-n < least {
		return fmt.Errorf("%w: the disk of %s has %s free, of which images leave %s", unix.ENOSPC, s.directories, mebibytes(free), mebibytes(least))
	}
	// Some file systems have no bound of inodes, and say that they have none.
	leastInodes := min(leastFreeInodes, disk.Files/leastFreeShare)
	if disk.Files > 0 && disk.Ffree <= leastInodes {
		return fmt.Errorf("%w: the disk of %s has %d inodes free, of which images leave %d", unix.ENOSPC, s.directories, disk.Ffree, leastInodes)
	}
	return nil
}

func (s *Store) giveBack(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes -= n
}

// emptyTrash removes what an earlier store left there.
func (s *Store) emptyTrash() {
	entries, err := os.ReadDir(s.path(trashDirectory))
	for _, entry := range entries {
		if s.ctx.Err() != nil {
			return
		}
		if e := remove.All(s.ctx, s.path(trashDirectory, entry.Name())); s.ctx.Err() == nil {
			err = errors.Join(err, e)
		}
	}
	if err != nil {
		s.log.Warn().Err(err).Msg("cannot remove what is left of images")
	}
}

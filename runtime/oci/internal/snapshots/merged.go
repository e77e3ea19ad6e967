package snapshots

import (
	"context"
	"slices"

	"sandbox.internal/runtime/oci/internal/layout"
)

// Merge returns one snapshot in place of a chain of several, of an image, lowest first: a tree that
// has what all of theirs have together, which fill makes where there is none. The snapshot is not
// listed. It stays until release is called, and while something lies on it.
func (s *Store) Merge(ctx context.Context, imageID string, chain []string, fill func(*Making) (Record, error)) (record Record, release func(), err error) {
	select {
	case s.merging <- struct{}{}: // another one may be making the same
		defer func() { <-s.merging }()
	case <-ctx.Done():
		return Record{}, nil, ctx.Err()
	}
	if record, release, ok := s.holdMerged(chain); ok {
		return record, release, nil
	}
	// Snapshots have no name that begins with a dot.
	making, _, err := s.Begin(".merged-" + layout.NewID())
	if err != nil {
		return Record{}, nil, err
	}
	s.mu.Lock()
	release = s.hold(making.id)
	s.mu.Unlock()
	if record, err = fill(making); err != nil {
		making.Abort()
		release()
		return Record{}, nil, err
	}
	record.ImageID, record.Removed, record.Source = imageID, true, making.id
	record.Merged, record.Sources = chain, s.sources(chain)
	if record, err = making.Commit(record, nil); err != nil {
		release()
		return Record{}, nil, err
	}
	return record, release, nil
}

// holdMerged holds the snapshot that has what a chain has. The highest one of a chain says what all
// of it has.
func (s *Store) holdMerged(chain []string) (Record, func(), bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, record := range s.byID {
		if n := len(record.Merged); n > 0 && record.Merged[n-1] == chain[len(chain)-1] {
			return record, s.hold(record.ID), true
		}
	}
	return Record{}, nil, false
}

// sources returns the upper layers that the trees of a chain share files with.
func (s *Store) sources(chain []string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := map[string]bool{}
	for _, record := range s.byID {
		known[record.Source] = true
	}
	var sources []string
	for _, id := range chain {
		record := s.byID[id]
		for _, source := range append([]string{record.Source}, record.Sources...) {
			if source != "" && known[source] {
				sources = append(sources, source)
			}
		}
	}
	slices.Sort(sources)
	return slices.Compact(sources)
}

// Related returns the snapshots that may share files with what a container has that begins with the
// snapshot, but not the snapshot itself.
func (s *Store) Related(to Record) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []string
	for more := to.Base; len(more) > 0; {
		id := more[0]
		more = more[1:]
		if record, ok := s.byID[id]; ok {
			ids, more = append(ids, id), append(slices.Clone(more), record.Merged...)
		}
	}
	var last Record
	for _, record := range s.byID {
		if record.Source == to.Source && record.Created.Before(to.Created) && (last.ID == "" || record.Created.After(last.Created)) {
			last = record
		}
	}
	if last.ID != "" && to.Source != "" {
		ids = append(ids, last.TreeID())
	}
	return ids
}

// counted returns the record with the bytes that removed snapshots have left to it, too. mu is
// held.
func (s *Store) counted(record Record) Record {
	record.Exclusive += s.left()[record.ID]
	return record
}

// left returns what removed snapshots have that something needs, by the ids of the snapshots that
// it is counted for: of those that need it the oldest one, else the next one of the same upper
// layer, which may share it. What only containers need is counted for none. mu is held.
func (s *Store) left() map[string]int64 {
	listed := make([]Record, 0, len(s.byID))
	for _, record := range s.byID {
		if !record.Removed {
			listed = append(listed, record)
		}
	}
	slices.SortFunc(listed, func(a, b Record) int { return a.Created.Compare(b.Created) })
	left, lists, seen := map[string]int64{}, map[string]int64{}, map[string]bool{}
	for _, record := range listed {
		s.below(record.needs(), seen, func(removed Record) {
			left[record.ID] += removed.Exclusive
			lists[record.ID] += removed.Lists
		})
	}
	for id, removed := range s.byID {
		if !removed.Removed || seen[id] || removed.Source == "" {
			continue
		}
		next := slices.IndexFunc(listed, func(r Record) bool { return r.Source == removed.Source && r.Created.After(removed.Created) })
		if next >= 0 {
			shared := max(0, listed[next].Bytes-listed[next].Exclusive-left[listed[next].ID])
			left[listed[next].ID] += min(removed.Exclusive, shared)
			lists[listed[next].ID] += removed.Lists
		}
	}
	for id, bytes := range lists {
		left[id] += bytes
	}
	return left
}

// below calls visit for the removed snapshots of a chain, and for those that they were merged of,
// each once. mu is held.
func (s *Store) below(chain []string, seen map[string]bool, visit func(Record)) {
	for _, id := range chain {
		record, ok := s.byID[id]
		if !ok || !record.Removed || seen[id] {
			continue
		}
		seen[id] = true
		visit(record)
		s.below(record.Merged, seen, visit)
	}
}

// Uncounted returns the bytes of a chain that no snapshot is listed with: a snapshot that lies on
// the chain will be.
func (s *Store) Uncounted(chain []string) (bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := map[string]bool{}
	for _, record := range s.byID {
		if !record.Removed {
			s.below(record.needs(), seen, func(Record) {})
		}
	}
	s.below(chain, seen, func(removed Record) { bytes += removed.Exclusive + removed.Lists })
	return bytes
}

package metrics

import (
	"context"
	"errors"
	"time"

	"sandbox.internal/server/host"
	"sandbox.internal/server/lifecycle"
)

// Store returns a store that does what the given one does, and whose writes are measured.
func (m *Metrics) Store(inner host.Store) host.Store { return &measuredStore{inner, m} }

// measuredStore passes on what it does not measure.
type measuredStore struct {
	host.Store
	metrics *Metrics
}

const (
	writeInsert = "insert"
	writeSave   = "save"
	writeForget = "forget"

	writeSaveUnsynced = "save_unsynced"
)

func writes() []string {
	return []string{writeInsert, writeSave, writeSaveUnsynced, writeForget}
}

func (s *measuredStore) measure(write string, began time.Time, err error) {
	s.metrics.storeWrites.WithLabelValues(write).Observe(s.metrics.clock().Sub(began).Seconds())
	// A client that has gone is not counted as an error of the store.
	if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		s.metrics.storeErrors.WithLabelValues(write).Inc()
	}
}

func (s *measuredStore) Insert(ctx context.Context, record lifecycle.Record,
	key *lifecycle.IdempotencyKey, events ...lifecycle.Event) error {
	began := s.metrics.clock()
	err := s.Store.Insert(ctx, record, key, events...)
	s.measure(writeInsert, began, err)
	return err
}

func (s *measuredStore) Save(ctx context.Context, record lifecycle.Record,
	events ...lifecycle.Event) error {
	began := s.metrics.clock()
	err := s.Store.Save(ctx, record, events...)
	s.measure(writeSave, began, err)
	return err
}

func (s *measuredStore) SaveUnsynced(ctx context.Context, record lifecycle.Record,
	events ...lifecycle.Event) error {
	began := s.metrics.clock()
	err := s.Store.SaveUnsynced(ctx, record, events...)
	s.measure(writeSaveUnsynced, began, err)
	return err
}

func (s *measuredStore) Forget(ctx context.Context, id string, events ...lifecycle.Event) error {
	began := s.metrics.clock()
	err := s.Store.Forget(ctx, id, events...)
	s.measure(writeForget, began, err)
	return err
}

package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"sandbox.internal/server/lifecycle"
)

// FindKey returns the owner's idempotency key and whether there is one that is not older than
// notBefore.
func (s *Store) FindKey(ctx context.Context, owner, key string,
	notBefore time.Time) (lifecycle.IdempotencyKey, bool, error) {
	found := lifecycle.IdempotencyKey{Owner: owner, Key: key}
	var createdAt int64
	err := s.findKey.QueryRowContext(ctx, owner, key, notBefore.UnixNano()).Scan(&found.Digest,
		&found.SandboxID, &createdAt)
	if errors.Is(err, sql.ErrNoRows) {
		return lifecycle.IdempotencyKey{}, false, nil
	}
	if err != nil {
		return lifecycle.IdempotencyKey{}, false, fmt.Errorf("store: find idempotency key: %w", err)
	}
	found.CreatedAt = time.Unix(0, createdAt).UTC()
	return found, true, nil
}

// PurgeKeys removes the idempotency keys that are older than notBefore.
func (s *Store) PurgeKeys(ctx context.Context, notBefore time.Time) error {
	return s.writer.do(ctx, func(stmts *statements) error {
		if err := execute(stmts.purgeKeys, notBefore.UnixNano()); err != nil {
			return fmt.Errorf("store: purge idempotency keys: %w", err)
		}
		return nil
	})
}

// CheckWritable makes a change of its own durable, and returns an error when that is not possible:
// the disk is full, say, or was mounted read-only after an error.
func (s *Store) CheckWritable(ctx context.Context) error {
	return s.writer.do(ctx, func(stmts *statements) error {
		if err := execute(stmts.checkWritable); err != nil {
			return fmt.Errorf("store: try a write: %w", err)
		}
		return nil
	})
}

func insertKey(stmts *statements, key lifecycle.IdempotencyKey) error {
	outdated := key.CreatedAt.Add(-lifecycle.IdempotencyWindow)
	result, err := stmts.insertKey.ExecContext(context.Background(),
		key.Owner, key.Key, key.Digest, key.SandboxID, key.CreatedAt.UnixNano(),
		outdated.UnixNano())
	if err != nil {
		return fmt.Errorf("store: insert idempotency key: %w", err)
	}
	switch n, err := result.RowsAffected(); {
	case err != nil:
		return fmt.Errorf("store: insert idempotency key: %w", err)
	case n == 0:
		return fmt.Errorf("store: insert idempotency key: %w", lifecycle.ErrKeyInUse)
	}
	return nil
}

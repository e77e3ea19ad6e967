package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// SaveLog keeps the end of an ended sandbox's log for as long as its record is kept; it replaces
// what was kept before. It does nothing when there is no record.
func (s *Store) SaveLog(ctx context.Context, id string, log []byte) error {
	if log == nil {
		log = []byte{} // an empty log is not an absent one
	}
	return s.writer.do(ctx, func(stmts *statements) error {
		if err := execute(stmts.saveLog, log, id); err != nil {
			return fmt.Errorf("store: save the log of sandbox %q: %w", id, err)
		}
		return nil
	})
}

// Log returns what SaveLog kept, and whether it kept anything.
func (s *Store) Log(ctx context.Context, id string) (log []byte, kept bool, err error) {
	err = s.readDB.QueryRowContext(ctx, `SELECT log FROM logs WHERE sandbox_id = ?`, id).Scan(&log)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("store: read the log of sandbox %q: %w", id, err)
	}
	return log, true, nil
}

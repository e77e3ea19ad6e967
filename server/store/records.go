package store

import (
	"context"
	"encoding/json"
	"fmt"

	"sandbox.internal/server/lifecycle"
)

// Load returns every record, oldest first, ties by id. A record that cannot be read fails the whole
// call: a sandbox that the service has no record of would run forever.
func (s *Store) Load(ctx context.Context) (records []lifecycle.Record, err error) {
	rows, err := s.readDB.QueryContext(ctx,
		`SELECT id, record FROM sandboxes ORDER BY created_at, id`)
	if err != nil {
		return nil, s.damaged("read", err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var id string
		var data []byte
		if err := rows.Scan(&id, &data); err != nil {
			return nil, s.damaged("read", err)
		}
		record, err := decode(data)
		if err == nil && record.Sandbox.ID != id {
			err = fmt.Errorf("record names sandbox %q", record.Sandbox.ID)
		}
		if err != nil {
			return nil,
				fmt.Errorf(
					"store: %s: record of sandbox %q is damaged: %w; restore the file from a backup, or give this sandbox up: sqlite3 %[1]s \"DELETE FROM sandboxes WHERE id = '%[2]s'\"",
					s.path, id, err)
		}
		records = append(records, record)
	}
	if err := rows.Err(); err != nil {
		return nil, s.damaged("read", err)
	}
	return records, nil
}

// Insert makes a new record durable, together with its idempotency key if key is not nil and with
// its events: all or nothing. It fails when there is a record with that id already, and with
// [lifecycle.ErrKeyInUse] when the owner has used that key within [lifecycle.IdempotencyWindow].
func (s *Store) Insert(ctx context.Context, record lifecycle.Record, key *lifecycle.IdempotencyKey,
	events ...lifecycle.Event) error {
	data, err := encode(record)
	if err != nil {
		return err
	}
	rows, err := encodeEvents(events)
	if err != nil {
		return err
	}
	return s.writer.do(ctx, func(stmts *statements) error {
		sandbox := &record.Sandbox
		if err := execute(stmts.insert, sandbox.ID, sandbox.CreatedAt.UnixNano(),
			string(sandbox.Status.State), data); err != nil {
			return fmt.Errorf("store: insert sandbox %q: %w", sandbox.ID, err)
		}
		if key != nil {
			if err := insertKey(stmts, *key); err != nil {
				return err
			}
		}
		return insertEvents(stmts, rows)
	})
}

// Save makes a changed record durable, together with the events of the change: both or neither. A
// record that is not there is an error: one that was removed must not be stored again.
func (s *Store) Save(ctx context.Context, record lifecycle.Record,
	events ...lifecycle.Event) error {
	return s.save(ctx, s.writer.do, record, events)
}

// SaveUnsynced is Save without the sync: kill -9 does not undo the change, and a loss of power may,
// until the next change that is synced or the next read of events.
func (s *Store) SaveUnsynced(ctx context.Context, record lifecycle.Record,
	events ...lifecycle.Event) error {
	return s.save(ctx, s.writer.doUnsynced, record, events)
}

func (s *Store) save(ctx context.Context,
	do func(context.Context, func(*statements) error) error,
	record lifecycle.Record, events []lifecycle.Event) error {
	data, err := encode(record)
	if err != nil {
		return err
	}
	rows, err := encodeEvents(events)
	if err != nil {
		return err
	}
	return do(ctx, func(stmts *statements) error {
		if err := update(stmts, &record.Sandbox, data); err != nil {
			return err
		}
		return insertEvents(stmts, rows)
	})
}

// update writes the encoded record of a sandbox over the one that is there.
func update(stmts *statements, sandbox *lifecycle.Sandbox, data []byte) error {
	result, err := stmts.save.ExecContext(context.Background(), string(sandbox.Status.State), data,
		sandbox.ID)
	if err != nil {
		return fmt.Errorf("store: save sandbox %q: %w", sandbox.ID, err)
	}
	if n, err := result.RowsAffected(); err != nil || n != 1 {
		return fmt.Errorf("store: save sandbox %q: there is no such record", sandbox.ID)
	}
	return nil
}

// Forget removes a record and its log, and makes its events durable: all or nothing. Forgetting a
// missing record succeeds and writes no events. The idempotency key stays until it is purged.
func (s *Store) Forget(ctx context.Context, id string, events ...lifecycle.Event) error {
	rows, err := encodeEvents(events)
	if err != nil {
		return err
	}
	return s.writer.do(ctx, func(stmts *statements) error {
		if err := execute(stmts.forgetLog, id); err != nil {
			return fmt.Errorf("store: forget the log of sandbox %q: %w", id, err)
		}
		result, err := stmts.forget.ExecContext(context.Background(), id)
		if err != nil {
			return fmt.Errorf("store: forget sandbox %q: %w", id, err)
		}
		if n, err := result.RowsAffected(); err != nil || n == 0 {
			return err
		}
		return insertEvents(stmts, rows)
	})
}

// encode returns a record as JSON. Fields that a newer release wrote are ignored by decode, and
// fields that an older one did not have are zero.
func encode(record lifecycle.Record) ([]byte, error) {
	data, err := lifecycle.EncodeJSON(record)
	if err != nil {
		return nil, fmt.Errorf("store: encode sandbox %q: %w", record.Sandbox.ID, err)
	}
	return data, nil
}

func decode(data []byte) (record lifecycle.Record, err error) {
	err = json.Unmarshal(data, &record)
	return record, err
}

package store

import (
	"context"
	"encoding/json"
	"fmt"

	"sandbox.internal/server/lifecycle"
)

// LoadSnapshots returns every snapshot's record, oldest first, ties by id. A record that cannot be
// read fails the whole call: the files of a snapshot without a record are removed.
func (s *Store) LoadSnapshots(ctx context.Context) (snapshots []lifecycle.Snapshot, err error) {
	rows, err := s.readDB.QueryContext(ctx,
		`SELECT id, record FROM snapshots ORDER BY created_at, id`)
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
		var snapshot lifecycle.Snapshot
		err := json.Unmarshal(data, &snapshot)
		if err == nil && snapshot.ID != id {
			err = fmt.Errorf("record names snapshot %q", snapshot.ID)
		}
		if err != nil {
			return nil,
				fmt.Errorf(
					"store: %s: record of snapshot %q is damaged: %w; restore the file from a backup, or give this snapshot up: sqlite3 %[1]s \"DELETE FROM snapshots WHERE id = '%[2]s'\"",
					s.path, id, err)
		}
		snapshots = append(snapshots, snapshot)
	}
	if err := rows.Err(); err != nil {
		return nil, s.damaged("read", err)
	}
	return snapshots, nil
}

// InsertSnapshot makes a new snapshot's record durable, with its idempotency key if key is not nil,
// whose SandboxID is the id of the snapshot, and with its events: all or nothing. It fails when
// there is a record with that id already, and with [lifecycle.ErrKeyInUse] as [Store.Insert] does.
func (s *Store) InsertSnapshot(ctx context.Context, snapshot lifecycle.Snapshot,
	key *lifecycle.IdempotencyKey, events ...lifecycle.Event) error {
	data, err := encodeSnapshot(snapshot)
	if err != nil {
		return err
	}
	rows, err := encodeEvents(events)
	if err != nil {
		return err
	}
	return s.writer.do(ctx, func(stmts *statements) error {
		if err := execute(stmts.insertSnapshot, snapshot.ID, snapshot.CreatedAt.UnixNano(),
			snapshot.SandboxID, string(snapshot.Status.State), data); err != nil {
			return fmt.Errorf("store: insert snapshot %q: %w", snapshot.ID, err)
		}
		if key != nil {
			if err := insertKey(stmts, *key); err != nil {
				return err
			}
		}
		return insertEvents(stmts, rows)
	})
}

// SaveSnapshot makes a changed snapshot's record durable, with the record of a sandbox that changes
// at the same time, if record is not nil, and with the events of both: all or nothing. A record
// that is not there is an error.
func (s *Store) SaveSnapshot(ctx context.Context, snapshot lifecycle.Snapshot,
	record *lifecycle.Record, events ...lifecycle.Event) error {
	return s.saveSnapshot(ctx, s.writer.do, snapshot, record, events)
}

// SaveSnapshotUnsynced is SaveSnapshot of the snapshot alone, without the sync: a loss of power may
// undo it, as [Store.SaveUnsynced] says.
func (s *Store) SaveSnapshotUnsynced(ctx context.Context, snapshot lifecycle.Snapshot) error {
	return s.saveSnapshot(ctx, s.writer.doUnsynced, snapshot, nil, nil)
}

func (s *Store) saveSnapshot(ctx context.Context,
	do func(context.Context, func(*statements) error) error, snapshot lifecycle.Snapshot,
	record *lifecycle.Record, events []lifecycle.Event) error {
	data, err := encodeSnapshot(snapshot)
	if err != nil {
		return err
	}
	var sandbox []byte
	if record != nil {
		if sandbox, err = encode(*record); err != nil {
			return err
		}
	}
	rows, err := encodeEvents(events)
	if err != nil {
		return err
	}
	return do(ctx, func(stmts *statements) error {
		result, err := stmts.saveSnapshot.ExecContext(context.Background(),
			string(snapshot.Status.State), data, snapshot.ID)
		if err != nil {
			return fmt.Errorf("store: save snapshot %q: %w", snapshot.ID, err)
		}
		if n, err := result.RowsAffected(); err != nil || n != 1 {
			return fmt.Errorf("store: save snapshot %q: there is no such record", snapshot.ID)
		}
		if record != nil {
			if err := update(stmts, &record.Sandbox, sandbox); err != nil {
				return err
			}
		}
		return insertEvents(stmts, rows)
	})
}

// ForgetSnapshot removes a snapshot's record. Forgetting a missing one succeeds.
func (s *Store) ForgetSnapshot(ctx context.Context, id string) error {
	return s.writer.do(ctx, func(stmts *statements) error {
		if err := execute(stmts.forgetSnapshot, id); err != nil {
			return fmt.Errorf("store: forget snapshot %q: %w", id, err)
		}
		return nil
	})
}

func encodeSnapshot(snapshot lifecycle.Snapshot) ([]byte, error) {
	data, err := lifecycle.EncodeJSON(snapshot)
	if err != nil {
		return nil, fmt.Errorf("store: encode snapshot %q: %w", snapshot.ID, err)
	}
	return data, nil
}

package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"sandbox.internal/server/lifecycle"
)

// APIKeys returns the API keys that the service keeps, by name.
func (s *Store) APIKeys(ctx context.Context) (keys []lifecycle.APIKey, err error) {
	rows, err := s.readDB.QueryContext(ctx, `SELECT name, record, used_at FROM api_keys ORDER BY name`)
	if err != nil {
		return nil, s.damaged("read", err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var name string
		var data []byte
		var usedAt int64
		if err := rows.Scan(&name, &data, &usedAt); err != nil {
			return nil, s.damaged("read", err)
		}
		var key lifecycle.APIKey
		if err := json.Unmarshal(data, &key); err != nil || key.Name != name {
			return nil, fmt.Errorf(
				"store: %s: API key %q is damaged: %w; restore the file from a backup, or give the key up: sqlite3 %[1]s \"DELETE FROM api_keys WHERE name = '%[2]s'\"",
				s.path, name, orMisnamed(err, key.Name))
		}
		if usedAt > 0 {
			key.LastUsedAt = time.Unix(usedAt, 0).UTC()
		}
		keys = append(keys, key)
	}
	if err := rows.Err(); err != nil {
		return nil, s.damaged("read", err)
	}
	return keys, nil
}

// orMisnamed returns err, or without one the error of a record with another name than its row.
func orMisnamed(err error, name string) error {
	if err == nil {
		err = fmt.Errorf("the record names %q", name)
	}
	return err
}

// InsertAPIKey makes a new key durable. It returns [lifecycle.ErrNameHeld] when there is one of the
// name, and [lifecycle.ErrNameUsed] when there was one, unless that does not matter.
func (s *Store) InsertAPIKey(ctx context.Context, key lifecycle.APIKey, usedToo bool) error {
	data, err := encodeAPIKey(key)
	if err != nil {
		return err
	}
	return s.writer.do(ctx, func(stmts *statements) error {
		result, err := stmts.insertAPIKey.ExecContext(context.Background(), key.Name, data)
		if err != nil {
			return fmt.Errorf("store: insert API key: %w", err)
		}
		if n, err := result.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, lifecycle.ErrNameHeld)
		}
		used := 0
		err = stmts.findName.QueryRowContext(context.Background(), key.Name).Scan(&used)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("store: look for the name of an API key: %w", err)
		}
		if used > 0 && !usedToo {
			return lifecycle.ErrNameUsed
		}
		return errors.Join(noteName(stmts, key.Name, key.CreatedAt), trimNames(stmts))
	})
}

// SaveAPIKey replaces a key that is there.
func (s *Store) SaveAPIKey(ctx context.Context, key lifecycle.APIKey) error {
	data, err := encodeAPIKey(key)
	if err != nil {
		return err
	}
	return s.writer.do(ctx, func(stmts *statements) error {
		if err := execute(stmts.saveAPIKey, data, key.Name); err != nil {
			return fmt.Errorf("store: save API key: %w", err)
		}
		return nil
	})
}

// DeleteAPIKey removes a key, and remembers its name as one that was held until now.
func (s *Store) DeleteAPIKey(ctx context.Context, name string, now time.Time) error {
	return s.writer.do(ctx, func(stmts *statements) error {
		if err := execute(stmts.deleteAPIKey, name); err != nil {
			return fmt.Errorf("store: delete API key: %w", err)
		}
		return errors.Join(noteName(stmts, name, now), trimNames(stmts))
	})
}

// NoteKeyNames remembers names as those of keys that are kept elsewhere.
func (s *Store) NoteKeyNames(ctx context.Context, names []string, now time.Time) error {
	return s.writer.do(ctx, func(stmts *statements) error {
		for _, name := range names {
			if err := noteName(stmts, name, now); err != nil {
				return err
			}
		}
		return trimNames(stmts)
	})
}

// NoteKeyUses records when keys were used last, to a second. A loss of power may undo it.
func (s *Store) NoteKeyUses(ctx context.Context, uses map[string]time.Time) error {
	return s.writer.doUnsynced(ctx, func(stmts *statements) error {
		for name, at := range uses {
			if err := execute(stmts.noteUse, at.Unix(), name); err != nil {
				return fmt.Errorf("store: record the use of API keys: %w", err)
			}
		}
		return nil
	})
}

func noteName(stmts *statements, name string, at time.Time) error {
	if err := execute(stmts.noteName, name, at.Unix()); err != nil {
		return fmt.Errorf("store: remember the name of an API key: %w", err)
	}
	return nil
}

func trimNames(stmts *statements) error {
	if err := execute(stmts.trimNames, lifecycle.MaxKeyNames); err != nil {
		return fmt.Errorf("store: forget names of API keys: %w", err)
	}
	return nil
}

// encodeAPIKey leaves out when the key was used last, which has a column of its own.
func encodeAPIKey(key lifecycle.APIKey) ([]byte, error) {
	key.LastUsedAt = time.Time{}
	data, err := lifecycle.EncodeJSON(key)
	if err != nil {
		return nil, fmt.Errorf("store: encode API key: %w", err)
	}
	return data, nil
}

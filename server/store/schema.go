package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// migrations returns the steps from an empty database to the newest schema. The database's
// user_version counts the steps it has behind it. A step that was released is never changed; a
// change is a new step.
func migrations() []string {
	return []string{
		// The record is JSON; the other columns repeat what is useful to see in the sqlite3
		// shell. Times are Unix nanoseconds.
		`CREATE TABLE sandboxes (
			id         TEXT PRIMARY KEY NOT NULL,
			created_at INTEGER NOT NULL,
			state      TEXT NOT NULL,
			record     BLOB NOT NULL
		) STRICT;
		CREATE TABLE idempotency_keys (
			owner      TEXT NOT NULL,
			key        TEXT NOT NULL,
			digest     TEXT NOT NULL,
			sandbox_id TEXT NOT NULL,
			created_at INTEGER NOT NULL,
			PRIMARY KEY (owner, key)
		) STRICT, WITHOUT ROWID;
		CREATE INDEX idempotency_keys_by_age ON idempotency_keys (created_at);`,

		// AUTOINCREMENT never gives a sequence out twice, also after the newest events were
		// removed, and a transaction that is rolled back gives its sequences back. The sequence
		// begins at the time in milliseconds, so that a new database goes on behind the one that
		// was lost: no client then takes an event for one that it has received.
		`CREATE TABLE events (
			sequence   INTEGER PRIMARY KEY AUTOINCREMENT,
			sandbox_id TEXT NOT NULL,
			owner      TEXT NOT NULL,
			time       INTEGER NOT NULL,
			event      BLOB NOT NULL
		) STRICT;
		CREATE INDEX events_by_sandbox ON events (sandbox_id, sequence);
		INSERT INTO sqlite_sequence (name, seq) VALUES ('events', CAST(unixepoch('subsec') * 1000 AS INTEGER));
		CREATE TABLE logs (
			sandbox_id TEXT PRIMARY KEY NOT NULL,
			log        BLOB NOT NULL
		) STRICT;`,

		// An event of metadata once held all of it and now holds what changed, so the former ones
		// go, and all before them, because the sequence has no gaps. total is the bytes of an event
		// and of all before it: how many bytes are kept is a difference.
		`DELETE FROM events WHERE sequence <= (SELECT max(sequence) FROM events WHERE json_extract(CAST(event AS TEXT), '$.Type') = 'metadata');
		ALTER TABLE events ADD COLUMN total INTEGER NOT NULL DEFAULT 0;
		UPDATE events SET total = sums.total
			FROM (SELECT sequence, sum(length(event)) OVER (ORDER BY sequence) AS total FROM events) AS sums
			WHERE sums.sequence = events.sequence;`,

		`CREATE TABLE image_grants (
			repository TEXT NOT NULL,
			image      TEXT NOT NULL,
			key        TEXT NOT NULL,
			PRIMARY KEY (repository, image, key)
		) STRICT, WITHOUT ROWID;`,

		// key_names has the names that API keys had: what belongs to a name must not become another
		// key's by accident. It begins with the names that the other tables have.
		`CREATE TABLE api_keys (
			name    TEXT PRIMARY KEY NOT NULL,
			record  BLOB NOT NULL,
			used_at INTEGER NOT NULL
		) STRICT, WITHOUT ROWID;
		CREATE TABLE key_names (
			name    TEXT PRIMARY KEY NOT NULL,
			held_at INTEGER NOT NULL
		) STRICT, WITHOUT ROWID;
		CREATE INDEX key_names_by_age ON key_names (held_at);
		INSERT INTO key_names (name, held_at)
			SELECT name, 0 FROM (
				SELECT json_extract(CAST(record AS TEXT), '$.Sandbox.Owner') AS name FROM sandboxes WHERE json_valid(CAST(record AS TEXT))
				UNION SELECT owner FROM events UNION SELECT owner FROM idempotency_keys UNION SELECT key FROM image_grants
			) WHERE name <> '';`,

		// As of sandboxes, which a snapshot outlives.
		`CREATE TABLE snapshots (
			id         TEXT PRIMARY KEY NOT NULL,
			created_at INTEGER NOT NULL,
			sandbox_id TEXT NOT NULL,
			state      TEXT NOT NULL,
			record     BLOB NOT NULL
		) STRICT;`,
	}
}

// check looks for damage at the start, so that no request finds it later.
func (s *Store) check(ctx context.Context, conn *sql.Conn) error {
	var verdict string
	if err := conn.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&verdict); err != nil {
		return s.damaged("check", err)
	}
	if verdict != "ok" {
		return s.damaged("check", errors.New(verdict))
	}
	return nil
}

func (s *Store) migrate(ctx context.Context, conn *sql.Conn) error {
	steps := migrations()
	var version int
	if err := conn.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return s.damaged("read the schema version of", err)
	}
	if version < 0 || version > len(steps) {
		return fmt.Errorf(
			"store: %s has schema version %d and this release supports only up to %d: run the release that wrote it, or a newer one",
			s.path, version, len(steps))
	}
	for ; version < len(steps); version++ {
		script := fmt.Sprintf("BEGIN IMMEDIATE;\n%s\nPRAGMA user_version = %d;\nCOMMIT;",
			steps[version], version+1)
		if _, err := conn.ExecContext(ctx, script); err != nil {
			return fmt.Errorf("store: bring %s to schema version %d: %w", s.path, version+1, err)
		}
		s.log.Info().Str("file", s.path).Int("schema", version+1).Msg("database migrated")
	}
	return nil
}

package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

const findKeySQL = `SELECT digest, sandbox_id, created_at FROM idempotency_keys WHERE owner = ? AND key = ? AND created_at >= ?`

// statements are what the writer runs, prepared once on its connection.
type statements struct {
	begin, commit, rollback  *sql.Stmt
	savepoint, release, undo *sql.Stmt
	insert, save, forget     *sql.Stmt
	insertKey, purgeKeys     *sql.Stmt
	checkWritable            *sql.Stmt
	insertEvent, boundEvents *sql.Stmt
	newest, oldestSince      *sql.Stmt
	trimEvents               *sql.Stmt
	saveLog, forgetLog       *sql.Stmt
	addGrant, removeGrant    *sql.Stmt
	insertAPIKey, saveAPIKey *sql.Stmt
	deleteAPIKey, noteUse    *sql.Stmt
	findName, noteName       *sql.Stmt
	trimNames                *sql.Stmt
	insertSnapshot           *sql.Stmt
	saveSnapshot             *sql.Stmt
	forgetSnapshot           *sql.Stmt
	all                      []*sql.Stmt
}

func prepareStatements(ctx context.Context, conn *sql.Conn) (*statements, error) {
	s := &statements{}
	for _, each := range []struct {
		target *(*sql.Stmt)
		query  string
	}{
		{&s.begin, `BEGIN IMMEDIATE`},
		{&s.commit, `COMMIT`},
		{&s.rollback, `ROLLBACK`},
		{&s.savepoint, `SAVEPOINT operation`},
		{&s.release, `RELEASE operation`},
		{&s.undo, `ROLLBACK TO operation`},
		{&s.insert, `INSERT INTO sandboxes (id, created_at, state, record) VALUES (?, ?, ?, ?)`},
		{&s.save, `UPDATE sandboxes SET state = ?, record = ? WHERE id = ?`},
		{&s.forget, `DELETE FROM sandboxes WHERE id = ?`},
		// A key past its window may still be there, because purging is only now and then: it gives
		// way to the new one.
		{&s.insertKey, `INSERT INTO idempotency_keys (owner, key, digest, sandbox_id, created_at) VALUES (?, ?, ?, ?, ?)
			ON CONFLICT DO UPDATE SET digest = excluded.digest, sandbox_id = excluded.sandbox_id, created_at = excluded.created_at
			WHERE created_at < ?`},
		{&s.purgeKeys, `DELETE FROM idempotency_keys WHERE created_at < ?`},
		// Each time another value: SQLite writes nothing for one that is there already, and a
		// transaction without a change does not touch the disk. The empty key is no client's, and
		// is purged with the others.
		{&s.checkWritable, `INSERT INTO idempotency_keys (owner, key, digest, sandbox_id, created_at) VALUES ('', '', '', '', 0)
			ON CONFLICT DO UPDATE SET created_at = created_at + 1`},
		{&s.insertEvent, `INSERT INTO events (sandbox_id, owner, time, event, total)
			VALUES (?1, ?2, ?3, ?4, length(?4) + coalesce((SELECT total FROM events ORDER BY sequence DESC LIMIT 1), 0))`},
		{&s.boundEvents, `DELETE FROM events WHERE sequence < (SELECT sequence FROM events
			WHERE total - length(event) >= (SELECT total FROM events ORDER BY sequence DESC LIMIT 1) - ?1 ORDER BY sequence LIMIT 1)`},
		{&s.newest, newestSQL},
		// In the order of the sequence, so that only what is about to be removed is looked at.
		{&s.oldestSince, `SELECT sequence FROM events WHERE time >= ? ORDER BY sequence LIMIT 1`},
		{&s.trimEvents, `DELETE FROM events WHERE sequence < ?`},
		{&s.saveLog, `INSERT INTO logs (sandbox_id, log) SELECT id, ? FROM sandboxes WHERE id = ?
			ON CONFLICT DO UPDATE SET log = excluded.log`},
		{&s.forgetLog, `DELETE FROM logs WHERE sandbox_id = ?`},
		{&s.addGrant, `INSERT INTO image_grants (repository, image, key) VALUES (?, ?, ?) ON CONFLICT DO NOTHING`},
		{&s.removeGrant, `DELETE FROM image_grants WHERE repository = ? AND image = ? AND key = ?`},
		{&s.insertAPIKey, `INSERT INTO api_keys (name, record, used_at) VALUES (?, ?, 0) ON CONFLICT DO NOTHING`},
		{&s.saveAPIKey, `UPDATE api_keys SET record = ? WHERE name = ?`},
		{&s.deleteAPIKey, `DELETE FROM api_keys WHERE name = ?`},
		{&s.noteUse, `UPDATE api_keys SET used_at = ? WHERE name = ?`},
		{&s.findName, `SELECT 1 FROM key_names WHERE name = ?`},
		{&s.noteName, `INSERT INTO key_names (name, held_at) VALUES (?, ?) ON CONFLICT DO UPDATE SET held_at = excluded.held_at`},
		{&s.trimNames, `DELETE FROM key_names WHERE name IN (SELECT name FROM key_names ORDER BY held_at DESC, name LIMIT -1 OFFSET ?)`},
		{&s.insertSnapshot, `INSERT INTO snapshots (id, created_at, sandbox_id, state, record) VALUES (?, ?, ?, ?, ?)`},
		{&s.saveSnapshot, `UPDATE snapshots SET state = ?, record = ? WHERE id = ?`},
		{&s.forgetSnapshot, `DELETE FROM snapshots WHERE id = ?`},
	} {
		stmt, err := conn.PrepareContext(ctx, each.query)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("prepare %q: %w", each.query, err), s.close())
		}
		*each.target = stmt
		s.all = append(s.all, stmt)
	}
	return s, nil
}

func (s *statements) close() error {
	var errs []error
	for _, stmt := range s.all {
		errs = append(errs, stmt.Close())
	}
	return errors.Join(errs...)
}

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

// keptEventBytes bounds the events that are kept, in bytes of their JSON. What is in excess goes,
// from the oldest on, with the transaction that brings it: no client can fill the disk with events.
const keptEventBytes = 64 << 20

// newestSQL is the greatest sequence that was ever given out.
const newestSQL = `SELECT seq FROM sqlite_sequence WHERE name = 'events'`

// Events returns the stored events that match, oldest first, and the bounds of what is stored at
// the same moment. All of it is synced: a loss of power must not take back an event that a client
// has, because another one would get its sequence.
func (s *Store) Events(ctx context.Context,
	query lifecycle.EventQuery) (lifecycle.EventPage, error) {
	page, err := s.events(ctx, query)
	if err == nil {
		err = s.writer.sync()
	}
	if err != nil {
		return lifecycle.EventPage{}, fmt.Errorf("store: read events: %w", err)
	}
	return page, nil
}

func (s *Store) events(ctx context.Context,
	query lifecycle.EventQuery) (page lifecycle.EventPage, err error) {
	// One snapshot for all: the bounds must be those of the events.
	snapshot, err := s.readDB.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return page, err
	}
	defer func() { _ = snapshot.Rollback() }()
	var oldest sql.NullInt64
	if err := snapshot.QueryRowContext(ctx,
		`SELECT (`+newestSQL+`), (SELECT MIN(sequence) FROM events)`).Scan(&page.Newest,
		&oldest); err != nil {
		return page, err
	}
	page.Oldest = page.Newest + 1
	if oldest.Valid {
		page.Oldest = oldest.Int64
	}
	// The common questions, asked after every change by every stream, read nothing when
	// there is nothing.
	if query.After >= page.Newest {
		return page, nil
	}
	text, args := `SELECT sequence, sandbox_id, owner, time, event FROM events WHERE sequence > ?`,
		[]any{query.After}
	if query.SandboxID != "" {
		text, args = text+` AND sandbox_id = ?`, append(args, query.SandboxID)
	}
	if query.Owner != nil {
		text, args = text+` AND owner = ?`, append(args, *query.Owner)
	}
	rows, err := snapshot.QueryContext(ctx, text+` ORDER BY sequence LIMIT ?`,
		append(args, query.Limit)...)
	if err != nil {
		return page, err
	}
	defer func() { _ = rows.Close() }()
	bytes := 0
	for rows.Next() {
		event, size, err := scanEvent(rows)
		if err != nil {
			return page, err
		}
		page.Events, bytes = append(page.Events, event), bytes+size
		if len(page.Events) == query.Limit || query.Bytes > 0 && bytes >= query.Bytes {
			page.More = true
			return page, nil
		}
	}
	return page, rows.Err()
}

// scanEvent returns an event, and its size as it is stored, in bytes.
func scanEvent(rows *sql.Rows) (event lifecycle.Event, size int, err error) {
	var sequence, at int64
	var sandboxID, owner string
	var data sql.RawBytes // until the next row
	if err := rows.Scan(&sequence, &sandboxID, &owner, &at, &data); err != nil {
		return event, 0, err
	}
	if err := json.Unmarshal(data, &event); err != nil {
		return event, 0, fmt.Errorf("event %d is damaged: %w", sequence, err)
	}
	event.Sequence, event.SandboxID, event.Owner = sequence, sandboxID, owner
	event.Time = time.Unix(0, at).UTC()
	return event, len(data), nil
}

// TrimEvents removes events from the oldest on: those that are older than notBefore, and those in
// excess of the newest keep ones.
func (s *Store) TrimEvents(ctx context.Context, keep int, notBefore time.Time) error {
	return s.writer.do(ctx, func(stmts *statements) error {
		var newest int64
		if err := stmts.newest.QueryRowContext(context.Background()).Scan(&newest); err != nil {
			return fmt.Errorf("store: find events to forget: %w", err)
		}
		first := newest + 1 // to be kept
		err := stmts.oldestSince.QueryRowContext(context.Background(),
			notBefore.UnixNano()).Scan(&first)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("store: find events to forget: %w", err)
		}
		first = max(first, newest-int64(keep)+1)
		if err := execute(stmts.trimEvents, first); err != nil {
			return fmt.Errorf("store: forget events: %w", err)
		}
		return nil
	})
}

// encodedEvent is an event ready to be written. What can fail has happened before the writer's
// turn.
type encodedEvent struct {
	lifecycle.Event
	data []byte
}

func encodeEvents(events []lifecycle.Event) ([]encodedEvent, error) {
	encoded := make([]encodedEvent, len(events))
	for i, event := range events {
		data, err := lifecycle.EncodeJSON(event)
		if err != nil {
			return nil, fmt.Errorf("store: encode an event of sandbox %q: %w", event.SandboxID, err)
		}
		encoded[i] = encodedEvent{event, data}
	}
	return encoded, nil
}

func insertEvents(stmts *statements, events []encodedEvent) error {
	for _, event := range events {
		if err := execute(stmts.insertEvent, event.SandboxID, event.Owner, event.Time.UnixNano(),
			event.data); err != nil {
			return fmt.Errorf("store: insert an event of sandbox %q: %w", event.SandboxID, err)
		}
	}
	if len(events) == 0 {
		return nil
	}
	if err := execute(stmts.boundEvents, keptEventBytes); err != nil {
		return fmt.Errorf("store: forget events: %w", err)
	}
	return nil
}

package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/rs/zerolog"
)

// maxBatch bounds how long the first operation of a batch waits for the last.
const maxBatch = 256

var errClosed = errors.New("store: closed")

// operation is one change and where its outcome goes.
type operation struct {
	ctx  context.Context
	run  func(*statements) error
	done chan error // holds one
}

// writer owns the only connection that writes.
type writer struct {
	log     zerolog.Logger
	conn    *sql.Conn
	stmts   *statements
	queue   chan *operation // unbuffered: what is not taken yet still belongs to its caller
	closing chan struct{}
	stopped chan struct{}
}

func startWriter(ctx context.Context, conn *sql.Conn, log zerolog.Logger) (*writer, error) {
	stmts, err := prepareStatements(ctx, conn)
	if err != nil {
		return nil, err
	}
	w := &writer{
		log: log, conn: conn, stmts: stmts,
		queue: make(chan *operation), closing: make(chan struct{}), stopped: make(chan struct{}),
	}
	go w.loop()
	return w, nil
}

// do returns once the change is durable or has failed. Once the writer has taken the operation ctx
// no longer ends it, so that the answer always says what happened.
func (w *writer) do(ctx context.Context, run func(*statements) error) error {
	op := &operation{ctx: ctx, run: run, done: make(chan error, 1)}
	select {
	case w.queue <- op:
		return <-op.done
	case <-ctx.Done():
		return ctx.Err()
	case <-w.closing:
		return errClosed
	}
}

// close must be called once.
func (w *writer) close() error {
	close(w.closing)
	<-w.stopped
	return errors.Join(w.stmts.close(), w.conn.Close())
}

func (w *writer) loop() {
	defer close(w.stopped)
	batch := make([]*operation, 0, maxBatch)
	for {
		select {
		case op := <-w.queue:
			batch = w.gather(append(batch[:0], op))
			w.commit(batch)
			clear(batch)
		case <-w.closing:
			return
		}
	}
}

// gather takes whatever waits already, and waits for nothing.
func (w *writer) gather(batch []*operation) []*operation {
	for len(batch) < maxBatch {
		select {
		case op := <-w.queue:
			batch = append(batch, op)
		default:
			return batch
		}
	}
	return batch
}

// commit runs the batch in one transaction and answers every operation. The error of one operation
// is its own; when the transaction fails, all fail.
func (w *writer) commit(batch []*operation) {
	outcomes := make([]error, len(batch))
	if err := w.transact(batch, outcomes); err != nil {
		w.log.Error().Err(err).Int("operations", len(batch)).Msg("transaction failed")
		for i := range outcomes {
			if outcomes[i] == nil {
				outcomes[i] = fmt.Errorf("store: commit: %w", err)
			}
		}
	}
	for i, op := range batch {
		op.done <- outcomes[i]
	}
}

func (w *writer) transact(batch []*operation, outcomes []error) error {
	if err := execute(w.stmts.begin); err != nil {
		return err
	}
	err := w.runAll(batch, outcomes)
	if err == nil {
		err = execute(w.stmts.commit)
	}
	if err != nil {
		// SQLite has rolled back by itself after some errors, a full disk among them; then there is
		// nothing left to do here.
		_ = execute(w.stmts.rollback)
	}
	return err
}

// runAll fills outcomes and returns an error when the transaction as a whole is lost.
func (w *writer) runAll(batch []*operation, outcomes []error) error {
	for i, op := range batch {
		if outcomes[i] = op.ctx.Err(); outcomes[i] != nil {
			continue
		}
		if err := execute(w.stmts.savepoint); err != nil {
			return err
		}
		if outcomes[i] = op.run(w.stmts); outcomes[i] != nil {
			// This fails when SQLite has dropped the whole transaction. Going on would commit each
			// later operation on its own.
			if err := execute(w.stmts.undo); err != nil {
				return errors.Join(outcomes[i], err)
			}
		}
		if err := execute(w.stmts.release); err != nil {
			return err
		}
	}
	return nil
}

// execute passes no caller's context: an interrupted statement would take the other operations of
// the batch down with it.
func execute(stmt *sql.Stmt, args ...any) error {
	_, err := stmt.ExecContext(context.Background(), args...)
	return err
}

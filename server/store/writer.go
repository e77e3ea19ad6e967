package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/rs/zerolog"
)

// maxBatch bounds how long the first operation of a batch waits for the last.
const maxBatch = 256

var errClosed = errors.New("store: closed")

// operation is one change and where its outcome goes.
type operation struct {
	ctx  context.Context
	run  func(*statements) error
	sync bool       // what it changes is to survive a loss of power
	done chan error // holds one
}

// writer owns the only connection that writes.
type writer struct {
	log     zerolog.Logger
	conn    *sql.Conn
	wal     *os.File
	stmts   *statements
	queue   chan *operation // unbuffered: what is not taken yet still belongs to its caller
	closing chan struct{}
	stopped chan struct{}

	syncs   bool       // whether the connection syncs commits
	syncing sync.Mutex // held during sync
	// mu is held during a commit without a sync: where such a change can be read, unsynced is set.
	mu       sync.Mutex
	unsynced bool
}

func startWriter(ctx context.Context, conn *sql.Conn, wal *os.File,
	log zerolog.Logger) (*writer, error) {
	stmts, err := prepareStatements(ctx, conn)
	if err != nil {
		return nil, err
	}
	w := &writer{
		log: log, conn: conn, wal: wal, stmts: stmts, syncs: true,
		unsynced: true, // perhaps by an earlier process, which was killed
		queue:    make(chan *operation), closing: make(chan struct{}), stopped: make(chan struct{}),
	}
	go w.loop()
	return w, nil
}

// do returns once the change is durable or has failed. Once the writer has taken the operation ctx
// no longer ends it, so that the answer always says what happened.
func (w *writer) do(ctx context.Context, run func(*statements) error) error {
	return w.enqueue(&operation{ctx: ctx, run: run, sync: true, done: make(chan error, 1)})
}

// doUnsynced is do for a change that a loss of power may undo.
func (w *writer) doUnsynced(ctx context.Context, run func(*statements) error) error {
	return w.enqueue(&operation{ctx: ctx, run: run, done: make(chan error, 1)})
}

func (w *writer) enqueue(op *operation) error {
	select {
	case w.queue <- op:
		return <-op.done
	case <-op.ctx.Done():
		return op.ctx.Err()
	case <-w.closing:
		return errClosed
	}
}

// sync returns when everything that can be read is synced. Commits go on meanwhile.
func (w *writer) sync() error {
	w.syncing.Lock()
	defer w.syncing.Unlock()
	if !w.setUnsynced(false) {
		return nil
	}
	err := syncData(w.wal)
	if err != nil {
		w.setUnsynced(true)
	}
	return err
}

func (w *writer) setUnsynced(to bool) (before bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, w.unsynced = w.unsynced, to
	return before
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
	synced := slices.ContainsFunc(batch, func(op *operation) bool { return op.sync })
	if err := w.setSyncs(synced); err != nil {
		return err
	}
	if err := execute(w.stmts.begin); err != nil {
		return err
	}
	err := w.runAll(batch, outcomes)
	if err == nil {
		err = w.commitAs(synced)
	}
	if err != nil {
		// SQLite has rolled back by itself after some errors, a full disk among them; then there is
		// nothing left to do here.
		_ = execute(w.stmts.rollback)
	}
	return err
}

// setSyncs makes the next commits synced ones, or not. The log is synced before it is copied into
// the database in both cases, so that a loss of power undoes the latest commits and nothing else.
func (w *writer) setSyncs(synced bool) error {
	if synced == w.syncs {
		return nil
	}
	level := "NORMAL"
	if synced {
		level = "FULL"
	}
	// It takes effect when it is prepared.
	if _, err := w.conn.ExecContext(context.Background(), "PRAGMA synchronous = "+level); err != nil {
		return err
	}
	w.syncs = synced
	return nil
}

func (w *writer) commitAs(synced bool) error {
	if synced {
		// unsynced stays: a transaction that has changed nothing is committed without a sync.
		return execute(w.stmts.commit)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unsynced = true
	return execute(w.stmts.commit)
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

package keys

import (
	"context"
	"sync/atomic"
	"time"
)

const (
	// useInterval is how far apart the uses of a key are that are noted, and how often they are
	// written.
	useInterval = time.Minute
	// flushTime bounds one write.
	flushTime = 10 * time.Second
)

// use notes a use, unless one was noted a short time ago.
func use(last *atomic.Int64, now time.Time) {
	noted := last.Load()
	if seconds := now.Unix(); seconds-noted >= int64(useInterval/time.Second) || seconds < noted {
		last.Store(seconds)
	}
}

func timeOf(seconds int64) time.Time {
	if seconds == 0 {
		return time.Time{}
	}
	return time.Unix(seconds, 0).UTC()
}

// flushUntil writes the latest uses now and then until ctx ends, and then once more.
func (r *Ring) flushUntil(ctx context.Context) {
	defer close(r.stopped)
	ticker := time.NewTicker(useInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			r.flush(ctx)
		case <-ctx.Done():
			r.flush(context.WithoutCancel(ctx))
			return
		}
	}
}

// flush writes the uses that the store does not have.
func (r *Ring) flush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, flushTime)
	defer cancel()
	uses, pending := map[string]time.Time{}, map[*kept]int64{}
	r.mu.RLock()
	for name, k := range r.kept {
		if used := k.used.Load(); used != k.recorded {
			uses[name], pending[k] = timeOf(used), used
		}
	}
	r.mu.RUnlock()
	if len(uses) == 0 {
		return
	}
	if err := r.options.Store.NoteKeyUses(ctx, uses); err != nil {
		r.log.Warn().Err(err).Msg("cannot record when keys were used last; tried again in a minute")
		return
	}
	for k, used := range pending {
		k.recorded = used
	}
}

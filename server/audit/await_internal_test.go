package audit

import (
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
)

// TestAwaitWhenAWriteFails: who waits for a line to become durable learns that the log has failed
// since, because no sync follows.
func TestAwaitWhenAWriteFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, err := Open(filepath.Join(t.TempDir(), "audit.log"), zerolog.Nop(), time.Now)
		if err != nil {
			t.Fatal(err)
		}
		awaited := make(chan error, 1)
		log.mu.Lock()
		ticket := log.wrote + 1 // of a line that no sync reaches
		log.mu.Unlock()
		go func() { awaited <- log.await(ticket) }()
		synctest.Wait()

		log.mu.Lock()
		_ = log.file.Close() // neither the write nor the repair succeeds
		err = log.append(line{Kind: KindRefused})
		failed := log.failed
		log.mu.Unlock()
		if err == nil || failed == nil {
			t.Fatalf("the log has not failed: %v", err)
		}
		synctest.Wait()
		select {
		case err := <-awaited:
			if !errors.Is(err, failed) {
				t.Errorf("await: %v, want %v", err, failed)
			}
		default:
			t.Error("await waits for a log that has failed")
		}
		_ = log.Close() // the file is closed already
		synctest.Wait()
	})
}

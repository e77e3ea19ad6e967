package cli

import "sync"

// eachSizeOf calls resize for the first size and for each that differs from the one before, when
// changed says to look.
func eachSizeOf[T any](size func() (rows, cols int), changed <-chan T, stopNotify func(),
	resize func(rows, cols int)) (stop func()) {
	quit := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		var lastRows, lastCols int
		for {
			if rows, cols := size(); rows > 0 && (rows != lastRows || cols != lastCols) {
				resize(rows, cols)
				lastRows, lastCols = rows, cols
			}
			select {
			case <-changed:
			case <-quit:
				return
			}
		}
	})
	return func() {
		stopNotify()
		close(quit)
		done.Wait()
	}
}

package cli

import "time"

// sizeInterval is how often the size is looked at: Windows has no signal for it.
const sizeInterval = 500 * time.Millisecond

// followSize calls resize with the size of our terminal now and whenever it changes, until the
// function that it returns is called.
func (t *tool) followSize(resize func(rows, cols int)) (stop func()) {
	ticker := time.NewTicker(sizeInterval)
	return eachSizeOf(t.terminalSize, ticker.C, ticker.Stop, resize)
}

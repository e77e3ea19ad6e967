package eventlog

import "sync/atomic"

// MaxMemory is how many bytes logs that have not ended hold in memory together, before the output
// of each goes directly to a file. Logs that are being written may exceed it, each by a segment.
const MaxMemory = 64 << 20

// Memory is what logs share that have not ended; the zero Memory is that of none. A nil Memory has
// no bound.
type Memory struct{ held atomic.Int64 }

func (m *Memory) add(bytes int64) {
	if m != nil {
		m.held.Add(bytes)
	}
}

// exceeds reports whether more bytes are held.
func (m *Memory) exceeds(bytes int64) bool { return m != nil && m.held.Load() > bytes }

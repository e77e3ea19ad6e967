package images

import (
	"fmt"
	"sync"
)

// meter sums up the progress of layers in one sentence about the image.
type meter struct {
	what   string // e.g. "pulling NAME"
	report func(string)

	mu       sync.Mutex
	layers   map[string]*layerMeter
	done     int
	current  int64
	total    int64
	reported int64 // current, when the last sentence was made
}

// layerMeter is the progress of one layer. current and total are bytes as they are sent.
type layerMeter struct {
	meter          *meter
	done           bool
	current, total int64
}

// reportEvery is how many bytes one sentence stands for.
const reportEvery = 1 << 20

func newMeter(what string, report func(string)) *meter {
	return &meter{what: what, report: report, layers: map[string]*layerMeter{}}
}

// begin sets what there is to get; an earlier attempt at it is forgotten.
func (m *meter) begin(diffIDs []string, blobs map[string]blob) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.layers, m.done, m.current, m.total, m.reported = map[string]*layerMeter{}, 0, 0, 0, 0
	for _, diffID := range diffIDs {
		m.layers[diffID] = &layerMeter{meter: m, total: blobs[diffID].size}
		m.total += blobs[diffID].size
	}
	m.say()
}

func (m *meter) layer(diffID string) *layerMeter {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.layers[diffID]
}

func (l *layerMeter) add(n int) {
	m := l.meter
	m.mu.Lock()
	defer m.mu.Unlock()
	l.set(min(l.current+int64(n), l.total))
	if m.current-m.reported >= reportEvery {
		m.say()
	}
}

// restart is for a layer that is read again from its begin.
func (l *layerMeter) restart() {
	m := l.meter
	m.mu.Lock()
	defer m.mu.Unlock()
	l.set(0)
}

func (l *layerMeter) finish() {
	m := l.meter
	m.mu.Lock()
	defer m.mu.Unlock()
	if l.done {
		return
	}
	l.done = true
	m.done++
	l.set(l.total)
	m.say()
}

func (l *layerMeter) set(current int64) {
	l.meter.current += current - l.current
	l.current = current
}

// say needs m.mu.
func (m *meter) say() {
	m.reported = m.current
	sentence := fmt.Sprintf("%s: %d of %d layers", m.what, m.done, len(m.layers))
	if m.total > 0 {
		sentence += fmt.Sprintf(", %s of %s", trimUnit(m.current, m.total), mebibytes(m.total))
	}
	m.report(sentence)
}

// mebibytes are at least one digit that says something.
func mebibytes(n int64) string {
	if n < 10<<20 {
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

// trimUnit writes current as precisely as mebibytes writes total.
func trimUnit(current, total int64) string {
	if total < 10<<20 {
		return fmt.Sprintf("%.1f", float64(current)/(1<<20))
	}
	return fmt.Sprint(current >> 20)
}

package pool

import "slices"

// queue has pods in the order of oldest. Most are added as the youngest and taken as the oldest: an
// insertion or a removal moves those of the shorter side, so that at either end it costs the same
// however many there are.
type queue struct {
	room  []*indexed // of which those from start on are in the queue
	start int
	moved int // entries that insert and remove have moved
}

// keptRoom is how much unused room before the oldest pod is kept at most, unless more is used.
const keptRoom = 64

// pods returns what is in the queue, which the caller must not change, until the next change of the
// queue. A nil queue is empty.
func (q *queue) pods() []*indexed {
	if q == nil {
		return nil
	}
	return q.room[q.start:]
}

func (q *queue) insert(i *indexed) {
	pods := q.pods()
	at, _ := slices.BinarySearchFunc(pods, i, oldest)
	if at < len(pods)/2 && q.start > 0 {
		q.start--
		q.moved += copy(q.room[q.start:], pods[:at])
		q.room[q.start+at] = i
		return
	}
	q.moved += len(pods) - at
	q.room = slices.Insert(q.room, q.start+at, i)
}

func (q *queue) remove(i *indexed) {
	pods := q.pods()
	at, found := slices.BinarySearchFunc(pods, i, oldest)
	if !found {
		return
	}
	if at >= len(pods)/2 {
		q.moved += len(pods) - at - 1
		q.room = slices.Delete(q.room, q.start+at, q.start+at+1)
		return
	}
	q.moved += copy(pods[1:], pods[:at])
	q.room[q.start] = nil
	if q.start++; q.start > max(keptRoom, len(q.room)/2) {
		q.moved += len(q.pods())
		q.room, q.start = slices.Clone(q.pods()), 0
	}
}

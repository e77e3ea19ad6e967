package files

import (
	"bytes"
	"cmp"
	"slices"
)

// keys are the first of a directory's names in their order, as many as fit into limit bytes. The
// names are in one piece of memory: a string for each would take several times as much.
type keys struct {
	limit int
	text  []byte
	spans []span
	// last is the highest key that can still be taken, once some did not fit; more is whether there
	// are others behind it.
	last []byte
	more bool
}

// span is where a key is in the text.
type span struct{ start, length uint32 }

const spanSize = 8

// add takes a key, unless others that come before it fill the limit.
func (k *keys) add(key string) {
	if k.more && key > string(k.last) {
		return
	}
	k.spans = append(k.spans, span{uint32(len(k.text)), uint32(len(key))})
	k.text = append(k.text, key...)
	if k.size() > k.limit && len(k.spans) > 1 {
		k.drop()
	}
}

// drop forgets the higher half of the keys.
func (k *keys) drop() {
	k.sort()
	kept := k.spans[:(len(k.spans)+1)/2]
	text := make([]byte, 0, len(k.text))
	for i, s := range kept {
		kept[i].start = uint32(len(text))
		text = append(text, k.at(s)...)
	}
	k.text, k.spans, k.more = text, kept, true
	k.last = slices.Clone(k.at(kept[len(kept)-1]))
}

func (k *keys) sort() {
	slices.SortFunc(k.spans, func(a, b span) int { return cmp.Or(bytes.Compare(k.at(a), k.at(b)), cmp.Compare(a.start, b.start)) })
}

// size is how many bytes the keys take.
func (k *keys) size() int { return len(k.text) + len(k.spans)*spanSize }

func (k *keys) at(s span) []byte { return k.text[s.start : s.start+s.length] }

func (k *keys) len() int { return len(k.spans) }

// key returns a key by its place in the order, after sort.
func (k *keys) key(i int) string { return string(k.at(k.spans[i])) }

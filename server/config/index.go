package config

import (
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"
)

// index has the position of each key of a TOML document. The decoder of go-toml reports positions
// only with its own errors; the rules need them of any key.
type index struct {
	// first maps a key (server.keys[0].name) to the line that introduces it.
	first map[string]int
	// last maps a line to the last key on it.
	last map[int]string
	// section is the key of the last table header.
	section string

	parser unstable.Parser
	counts map[string]int // entries seen so far of each array of tables
}

// newIndex reads as much of the document as its syntax allows.
func newIndex(doc []byte) *index {
	x := &index{first: map[string]int{}, last: map[int]string{}, counts: map[string]int{}}
	x.parser.Reset(doc)
	for x.parser.NextExpression() {
		e := x.parser.Expression()
		switch e.Kind {
		case unstable.Table:
			x.section = x.key("", e.Key())
		case unstable.ArrayTable:
			x.arrayTable(e)
		case unstable.KeyValue:
			x.keyValue(x.section, e)
		}
	}
	return x
}

// key records every part of a dotted key below parent and returns the whole.
func (x *index) key(parent string, parts unstable.Iterator) string {
	path := parent
	for parts.Next() {
		part := parts.Node()
		path = joinKey(path, string(part.Data))
		if n := x.counts[path]; n > 0 {
			path = element(path, n-1) // "[a.b]" after "[[a]]" is below its last entry
		}
		x.record(path, part)
	}
	return path
}

func (x *index) arrayTable(e *unstable.Node) {
	var parts []*unstable.Node
	for it := e.Key(); it.Next(); {
		parts = append(parts, it.Node())
	}
	path := ""
	for i, part := range parts {
		path = joinKey(path, string(part.Data))
		x.record(path, part)
		if i == len(parts)-1 {
			x.counts[path]++
		}
		if n := x.counts[path]; n > 0 {
			path = element(path, n-1)
			x.record(path, part)
		}
	}
	x.section = path
}

func (x *index) keyValue(parent string, e *unstable.Node) {
	x.value(x.key(parent, e.Key()), e.Value())
}

// value records what is inside an array or an inline table.
func (x *index) value(path string, v *unstable.Node) {
	switch v.Kind {
	case unstable.InlineTable:
		for it := v.Children(); it.Next(); {
			x.keyValue(path, it.Node())
		}
	case unstable.Array:
		i := 0
		for it := v.Children(); it.Next(); {
			if it.Node().Kind == unstable.Comment {
				continue
			}
			item := element(path, i)
			x.record(item, it.Node())
			x.value(item, it.Node())
			i++
		}
	}
}

func (x *index) record(path string, n *unstable.Node) {
	if n.Raw.Length == 0 {
		return // some values have no position of their own; line falls back to the key's
	}
	line := x.parser.Shape(n.Raw).Start.Line
	if _, ok := x.first[path]; !ok {
		x.first[path] = line
	}
	if n.Kind == unstable.Key {
		x.last[line] = path
	}
}

// line returns where key stands, else where the array entry stands that the key
// is part of or missing from, else 0.
func (x *index) line(key string) int {
	if n, ok := x.first[key]; ok {
		return n
	}
	end := strings.LastIndexByte(key, ']')
	if end < 0 {
		return 0
	}
	if end == len(key)-1 {
		return x.line(key[:strings.LastIndexByte(key, '[')])
	}
	return x.line(key[:end+1])
}

// joinKey appends a part to a dotted key, quoted where TOML asks for it.
func joinKey(parent, part string) string {
	if part == "" || strings.ContainsFunc(part, notBare) {
		part = strconv.Quote(part)
	}
	if parent == "" {
		return part
	}
	return parent + "." + part
}

func element(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

func notBare(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' ||
		r == '-')
}

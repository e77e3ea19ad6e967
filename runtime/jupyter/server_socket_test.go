package jupyter

import (
	"encoding/binary"
	"testing"
)

func TestJSONPart(t *testing.T) {
	frame := func(numbers []uint32, rest string) []byte {
		var out []byte
		for _, n := range numbers {
			out = binary.BigEndian.AppendUint32(out, n)
		}
		return append(out, rest...)
	}
	for _, test := range []struct {
		name  string
		frame []byte
		json  string // empty means that the frame is refused
	}{
		{"no buffer", frame([]uint32{1, 8}, `{"a":1}`), `{"a":1}`},
		{"two buffers", frame([]uint32{3, 16, 18, 19}, `{}xyz`), `{}`},
		{"empty", nil, ""},
		{"no parts", frame([]uint32{0, 8}, `{}`), ""},
		{"offset before the start", frame([]uint32{2, 14, 12}, `{}`), ""},
		{"offset behind the end", frame([]uint32{1, 100}, `{}`), ""},
		{"second offset behind the end", frame([]uint32{2, 12, 100}, `{}`), ""},
		{"no second offset", frame([]uint32{2, 8}, ``), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := jsonPart(test.frame)
			if (err != nil) != (test.json == "") || string(got) != test.json {
				t.Errorf("got %q, %v, want %q", got, err, test.json)
			}
		})
	}
}
